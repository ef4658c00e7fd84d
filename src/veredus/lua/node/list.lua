-- list: all gateway nodes with their last heartbeats.
-- KEYS  nodes
-- ARGV  [now_ms]
-- RETURNS  {now_ms, {node record}*}
-- include: clock
return { clock(ARGV[1]), redis.call('HGETALL', KEYS[1]) }

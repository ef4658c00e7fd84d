-- list: all gateway nodes with their last heartbeats.
-- KEYS  nodes
-- ARGV
-- RETURNS  {now_ms, {node record}*}
-- NEEDS  clock
return { clock(), redis.call('HGETALL', nodes) }

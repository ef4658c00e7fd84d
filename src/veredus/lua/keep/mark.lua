-- mark: a write that leaves nothing behind, so that this connection has one to be confirmed by WAIT or WAITAOF.
-- KEYS  absent
-- ARGV  [now_ms]
-- RETURNS  1
redis.call('SET', KEYS[1], '1')
return redis.call('DEL', KEYS[1])

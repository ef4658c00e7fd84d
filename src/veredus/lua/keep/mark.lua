-- mark: a write that leaves nothing behind, so that this connection has one to be confirmed by WAIT or WAITAOF.
-- KEYS  absent
-- ARGV
-- RETURNS  1
-- NEEDS  nothing
redis.call('SET', absent, '1')
return redis.call('DEL', absent)

-- leave: a gateway node stops: it counts as dead from now on, so that a sweep detaches whatever it still has.
-- KEYS  nodes
-- ARGV  node [now_ms]
-- RETURNS  1, or 0 if nobody knew it
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], '0 {}')
return 1

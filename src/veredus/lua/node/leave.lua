-- leave: a gateway node stops: it counts as dead from now on, so that a sweep detaches the sessions it still has.
-- KEYS  nodes
-- ARGV  node
-- RETURNS  1, or 0 if it was not known
-- NEEDS  nothing
if redis.call('HEXISTS', nodes, node) == 0 then return 0 end
redis.call('HSET', nodes, node, '0 {}')
return 1

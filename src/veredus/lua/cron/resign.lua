-- resign: give up leadership, so that another scheduler need not wait for the lease to end.
-- KEYS  leader
-- ARGV  scheduler
-- RETURNS  1 if it was this scheduler's, else 0
-- NEEDS  nothing
if redis.call('GET', leader) ~= scheduler then return 0 end
return redis.call('DEL', leader)

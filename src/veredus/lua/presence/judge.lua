-- judge: note how many leases of a worker were taken because it was found dead. If it lives, it learns so that this was wrong.
-- KEYS  judged
-- ARGV  worker_id count:number
-- RETURNS  how many have been taken from it in all
-- NEEDS  grow
local taken = grow('HINCRBY', judged, worker_id, count)
redis.call('EXPIRE', judged, 3600)
return taken

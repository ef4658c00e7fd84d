-- show: let Asynq's tools see the schedules of a leading scheduler; they expire unless it shows them again.
-- KEYS  entries [schedulers]
-- ARGV  ttl ROWS entry
-- RETURNS  now_ms
-- NEEDS  checks clock
-- In a cluster the index is in another slot: it is absent here, and the store writes it.
local now = clock()
if schedulers then expect(schedulers, 'zset') end
redis.call('DEL', entries)
for i, entry in rows() do redis.call('LPUSH', entries, entry) end
if rows_count > 0 then redis.call('EXPIRE', entries, ttl) end
if schedulers then redis.call('ZADD', schedulers, whole(math.floor(now / 1000) + tonumber(ttl)), entries) end
return now

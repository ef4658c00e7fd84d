-- show: let Asynq's tools see the schedules of a leading scheduler; they vanish by themselves when it shows them no more.
-- KEYS  entries [schedulers]
-- ARGV  ttl count {entry}* [now_ms]
-- RETURNS  now_ms
-- include: clock
-- The index is of another slot in a cluster: it is absent there and written beside the script.
local entries, schedulers = unpack(KEYS)
local ttl, count = ARGV[1], tonumber(ARGV[2])
local now = clock(ARGV[3 + count])

redis.call('DEL', entries)
for i = 1, count do redis.call('LPUSH', entries, ARGV[2 + i]) end
if count > 0 then redis.call('EXPIRE', entries, ttl) end
if schedulers then redis.call('ZADD', schedulers, whole(math.floor(now / 1000) + tonumber(ttl)), entries) end
return now

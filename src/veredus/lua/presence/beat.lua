-- beat: show that a worker process lives and what it is doing; the record vanishes by itself when the beats end.
-- KEYS  server workers [servers all_workers]
-- ARGV  ttl info count {task_id worker_info}* [now_ms]
-- RETURNS  now_ms
-- include: clock
-- The two indexes are of other slots in a cluster: they are absent there and written beside the script.
local server, workers, servers, all_workers = unpack(KEYS)
local ttl, info, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = clock(ARGV[4 + count * 2])

redis.call('SET', server, info, 'EX', ttl)
redis.call('DEL', workers)
for i = 1, count do
  redis.call('HSET', workers, ARGV[i * 2 + 2], ARGV[i * 2 + 3])
end
if count > 0 then redis.call('EXPIRE', workers, ttl) end
if servers then
  local stale = whole(math.floor(now / 1000) + tonumber(ttl))
  redis.call('ZADD', servers, stale, server)
  redis.call('ZADD', all_workers, stale, workers)
end
return now

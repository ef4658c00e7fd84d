-- beat: show that a worker process lives and what it is doing; the record vanishes by itself when the beats end.
-- KEYS  server workers types [servers all_workers]
-- ARGV  ttl info startable count {task_id worker_info}* [now_ms]
-- RETURNS  now_ms
-- include: clock grow
-- The two indexes are of other slots in a cluster: they are absent there and written beside the script.
local server, workers, types, servers, all_workers = unpack(KEYS)
local ttl, info, startable, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = clock(ARGV[5 + count * 2])

grow('SET', server, info, 'EX', ttl)
redis.call('SET', types, startable, 'EX', ttl)
redis.call('DEL', workers)
for i = 1, count do
  redis.call('HSET', workers, ARGV[i * 2 + 3], ARGV[i * 2 + 4])
end
if count > 0 then redis.call('EXPIRE', workers, ttl) end
if servers then
  local stale = whole(math.floor(now / 1000) + tonumber(ttl))
  redis.call('ZADD', servers, stale, server)
  redis.call('ZADD', all_workers, stale, workers)
end
return now

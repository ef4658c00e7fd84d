-- beat: show that a worker process lives and what it is doing; the record vanishes by itself when the beats end.
-- KEYS  server workers types [servers all_workers]
-- ARGV  ttl info startable expected gone {task_id}* count {task_id worker_info}* [now_ms]
-- RETURNS  {now_ms, 1; 0 if `workers` does not have as many rows as expected, and was left alone}
-- include: clock grow
-- Only what changed since the last beat is sent: `expected` is how many rows that one left, empty to begin anew.
-- The two indexes are of other slots in a cluster: they are absent there and written beside the script.
local server, workers, types, servers, all_workers = unpack(KEYS)
local ttl, info, startable, expected, gone = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local count = tonumber(ARGV[6 + gone])
local now = clock(ARGV[7 + gone + count * 2])

grow('SET', server, info, 'EX', ttl)
redis.call('SET', types, startable, 'EX', ttl)
local is_as_expected = 1
if not expected then
  redis.call('DEL', workers)
elseif redis.pcall('HLEN', workers) ~= expected then
  is_as_expected = 0
end
if is_as_expected == 1 then
  for i = 1, gone do redis.call('HDEL', workers, ARGV[5 + i]) end
  for i = 1, count do redis.call('HSET', workers, ARGV[5 + gone + i * 2], ARGV[6 + gone + i * 2]) end
  redis.call('EXPIRE', workers, ttl)
end
if servers then
  local stale = whole(math.floor(now / 1000) + tonumber(ttl))
  redis.call('ZADD', servers, stale, server)
  redis.call('ZADD', all_workers, stale, workers)
end
return { now, is_as_expected }

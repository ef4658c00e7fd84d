-- beat: show that a worker process is alive and what it is doing; the record expires when the heartbeats end.
-- KEYS  server workers types details [servers all_workers]
-- ARGV  ttl info startable version memory expected:number ROWS(gone) task_id ROWS(working) task_id worker_info
-- RETURNS  {now_ms, 1; 0 if `workers` does not have as many rows as expected, and was left alone, what the process is asked to do}
-- NEEDS  checks clock grow
-- Only what changed since the last beat is sent: `expected` is the number of rows that it left, empty to write all of them.
-- In a cluster the two indexes are in other slots: they are absent here, and the store writes them.
local now = clock()
if servers then
  expect(servers, 'zset')
  expect(all_workers, 'zset')
end
grow('SET', server, info, 'EX', ttl)
redis.call('SET', types, startable, 'EX', ttl)
if redis.call('TYPE', details).ok ~= 'hash' then redis.call('DEL', details) end
redis.call('HSET', details, 'version', version, 'memory', memory)
redis.call('EXPIRE', details, ttl)
local is_as_expected = 1
if not expected then
  redis.call('DEL', workers)
elseif redis.pcall('HLEN', workers) ~= expected then
  is_as_expected = 0
end
if is_as_expected == 1 then
  for i, task_id in gone() do redis.call('HDEL', workers, task_id) end
  for i, task_id, worker_info in working() do redis.call('HSET', workers, task_id, worker_info) end
  redis.call('EXPIRE', workers, ttl)
end
if servers then
  local stale = whole(math.floor(now / 1000) + tonumber(ttl))
  redis.call('ZADD', servers, stale, server)
  redis.call('ZADD', all_workers, stale, workers)
end
return { now, is_as_expected, redis.call('HGET', details, 'asked') or '' }

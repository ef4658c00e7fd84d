-- park: put a copy of another queue's task into this queue's archive, where nobody runs it, until the original is gone.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix task_id source lock count {field value}* [now_ms]
-- RETURNS  1 parked (again), -2 another task holds the lock, -6 the queue has a task with this id
-- include: clock checks places
local id, source, lock, count = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local now = clock(ARGV[6 + count * 2])
local key = task_prefix .. id
expect(archived, 'zset')
if redis.call('EXISTS', key) == 1 and redis.call('HGET', key, 'moved_from') ~= source then return -6 end
if lock ~= '' and redis.call('EXISTS', lock) == 1 then return -2 end

redis.call('DEL', key)
for i = 6, 4 + count * 2, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
redis.call('HSET', key, 'state', 'archived', 'moved_from', source)
redis.call('ZADD', archived, whole(math.floor(now / 1000)), id)
return 1

-- stage_copy: put a copy of another queue's task into this queue's archive, where it does not run, until the original is deleted.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix task_id source lock ROWS name value
-- RETURNS  1 staged (again), -2 another task holds the lock, -6 the queue has a task with this id
-- NEEDS  clock checks task_exists
local now = clock()
local key = keys.task(task_id)
expect(archived, 'zset')
local is_taken = redis.call('EXISTS', key) == 1 and not is_late_result(key)
if is_taken and redis.call('HGET', key, 'moved_from') ~= source then return -6 end
if lock ~= '' and redis.call('EXISTS', lock) == 1 then return -2 end

redis.call('DEL', key)
for _, name, value in rows() do redis.call('HSET', key, name, value) end
redis.call('HSET', key, 'state', 'archived', 'moved_from', source)
redis.call('ZADD', archived, whole(math.floor(now / 1000)), task_id)
return 1

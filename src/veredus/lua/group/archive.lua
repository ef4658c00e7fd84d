-- archive: put members of an aggregation set aside that cannot be read; the others stay in the set.
-- KEYS  set sets archived
-- ARGV  queue_prefix ROWS task_id unique_key message original
-- RETURNS  the number archived; those that are not in the set any more are left alone
-- NEEDS  clock checks fields ownership counters notify_waiters
-- The archive is kept within its limits by the archive script of tasks, whose every call takes away more than came in.
local now = clock()
expect(sets, 'zset')
expect(archived, 'zset')
if not redis.call('ZSCORE', sets, set) then return 0 end
expect(set, 'zset')

local number = 0
for i, task_id, unique_key, message, original in rows() do
  local key = keys.task(task_id)
  local task = read_task(key, 'unique_key', 'waited')
  if task and redis.call('ZREM', set, task_id) == 1 then
    redis.call('ZADD', archived, whole(math.floor(now / 1000)), task_id)
    redis.call('HSET', key, 'msg', message, 'state', 'archived')
    if original ~= '' then redis.call('HSET', key, 'original', original) end
    redis.call('HDEL', key, 'waited', 'cancel', 'cancel_of')
    release(unique_key ~= '' and unique_key or task.unique_key, task_id)
    notify_waiters(task.waited, 'archived', key)
    number = number + 1
  end
end
if redis.call('ZCARD', set) == 0 then redis.call('ZREM', sets, set) end
tally(now, number, number)
return number

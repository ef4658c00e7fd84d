-- retry: take members out of an aggregation set that do not fit its function; they join their group again when due.
-- KEYS  set sets retry scheduled due
-- ARGV  queue_prefix channel ROWS task_id unique_key message delay_ms:number
-- RETURNS  the number taken out; those that are not in the set any more are left alone
-- NEEDS  clock checks fields ownership counters wakeup due_group new_task
local now, now_up = clock()
expect(sets, 'zset')
expect(retry, 'zset')
expect(due, 'zset')
if not redis.call('ZSCORE', sets, set) then return 0 end
expect(set, 'zset')

local before, first_new, number = earliest(due, scheduled, retry), nil, 0
for i, task_id, unique_key, message, delay_ms in rows() do
  local key = keys.task(task_id)
  local task = read_task(key, 'unique_key', 'group')
  if task and redis.call('ZREM', set, task_id) == 1 then
    local at = now_up + delay_ms
    plan_task(retry, due, task_id, at)
    redis.call('HSET', key, 'msg', message, 'state', 'retry')
    local lock = unique_key ~= '' and unique_key or task.unique_key
    if task.group then leave_group_until_due(key, task.group, lock) end
    keep_lock(lock, task_id, at - now)
    if not first_new or at < first_new then first_new = at end
    number = number + 1
  end
end
if redis.call('ZCARD', set) == 0 then redis.call('ZREM', sets, set) end
announce(channel, before, first_new, now)
tally(now, number, number)
return number

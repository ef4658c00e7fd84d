-- requeue: give tasks back unrun, to the front of pending, the first of the list as the next to run.
-- KEYS  active lease pending
-- ARGV  queue_prefix ROWS task_id owner attempt
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- NEEDS  clock checks active ownership limits attempts waking
local now, _, nanoseconds = clock()
expect(active, 'list')
expect(pending, 'list')

local lost = {}
for i = rows_count, 1, -1 do
  local task_id, owner, attempt = rows(i)
  local key = keys.task(task_id)
  local is_owned, unique_key, slots, count = owned(key, lease, task_id, owner, 'unique_key', 'slots', 'attempts')
  if is_owned then
    leave_active(active, lease, key, task_id)
    redis.call('RPUSH', pending, task_id)
    redis.call('HSET', key, 'state', 'pending', 'pending_since', nanoseconds, attempt_fields(count, attempt))
    keep_lock(unique_key, task_id, 0)
    if slots then free_slots(queue_prefix, slots, task_id, now, nanoseconds) end
  else
    table.insert(lost, 1, i)
  end
end
if #lost < rows_count then wake(queue_prefix) end
return lost

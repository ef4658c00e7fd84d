-- complete: keep tasks that succeeded, with their result, until their retention ends.
-- KEYS  active lease completed
-- ARGV  queue_prefix ROWS task_id owner unique_key message retention:number has_result:flag result attempt
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- NEEDS  clock checks active ownership counters notify_waiters lanes limits attempts
local now, _, nanoseconds = clock()
expect(active, 'list')
expect(completed, 'zset')

local lost = {}
for i, task_id, owner, unique_key, message, retention, has_result, result, attempt in rows() do
  local key = keys.task(task_id)
  local is_owned, waited, order_key, slots, count =
    owned(key, lease, task_id, owner, 'waited', 'order_key', 'slots', 'attempts')
  if is_owned then
    leave_active(active, lease, key, task_id, 'waited', 'cancel', 'cancel_of', 'traceback')
    redis.call('ZADD', completed, whole(math.floor(now / 1000) + retention), task_id)
    redis.call('HSET', key, 'msg', message, 'state', 'completed', attempt_fields(count, attempt))
    if has_result then redis.call('HSET', key, 'result', result) end
    release(unique_key, task_id)
    if order_key then leave_lane(queue_prefix, order_key, task_id, nanoseconds) end
    if slots then free_slots(queue_prefix, slots, task_id, now, nanoseconds) end
    -- The notice has the result itself unless it is large or was written before: then a waiter fetches it.
    notify_waiters(waited, 'completed', key, has_result and #result <= 65536 and '=' .. result or '')
  else
    lost[#lost + 1] = i
  end
end
tally(now, rows_count - #lost, 0)
return lost

-- reschedule: make tasks due at another time, to the millisecond.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix channel due_at ROWS task_id seen_at:number
-- RETURNS  one code per task: 1 rescheduled, 0 no such task, -1 it is running, -3 it is not where its state says
-- NEEDS  clock ownership wakeup places lanes limits take_out due_group
-- One that waits for a retry still does, in its place; any other is scheduled and takes its place in its lane when it is due.
local now, _, nanoseconds, beyond = clock()
local at = instant(due_at, now, beyond)
expect_places()

local before = earliest(due, scheduled, retry)
local wanted = {}
for i, task_id, seen_at in rows() do wanted[i] = { id = task_id, seen_at = seen_at } end
local codes, tasks = take(wanted, function(task)
  if task.state == 'active' then return -1 end
end)
for _, task in ipairs(tasks) do
  local state = task.state == 'retry' and 'retry' or 'scheduled'
  redis.call('ZADD', SETS[state], whole(math.ceil(at / 1000)), task.id)
  redis.call('ZADD', due, whole(at), task.id)
  redis.call('HSET', task.key, 'state', state)
  redis.call('HDEL', task.key, 'pending_since', 'held', 'limited_by')
  if task.group then leave_group_until_due(task.key, task.group, task.lock) end
  if task.limited_by then stop_waiting(queue_prefix, task.limited_by, task.id) end
  if task.order_key and state ~= 'retry' then leave_lane(queue_prefix, task.order_key, task.id, nanoseconds) end
  keep_lock(task.lock, task.id, at - now)
end
if #tasks > 0 then announce(channel, before, at, now) end
return codes

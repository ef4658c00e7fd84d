-- reschedule: make tasks due at another time, to the millisecond.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix channel due_at count {task_id seen_at}* [now_ms]
-- RETURNS  one code per task: 1 rescheduled, 0 no such task, -1 it is running, -3 it is not where its state says
-- include: clock checks chunks hold wakeup places locks lanes limits taking due_group
-- One that waits for a retry still does, in its place; any other is scheduled and takes its place in its lane when it is due.
local channel, count = ARGV[2], tonumber(ARGV[4])
local now, now_up, nanoseconds = clock(ARGV[5 + count * 2])
local at = instant(ARGV[3], now_up)
expect_places()

local before = earliest(due, scheduled, retry)
local codes, tasks = take(5, count, function(task)
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

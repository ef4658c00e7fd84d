-- run: make tasks pending now, at the back of the line or at its front.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix front count {task_id seen_at}* [now_ms]
-- RETURNS  one code per task: 1 pending now, 0 no such task, -1 it is running, -2 it is pending already (front moves
--   it), -3 it is not where its state says, -7 it is parked: it waits for its turn in its lane, or for a limit
-- include: clock checks chunks hold trim tell places locks lanes limits taking due_group putting
-- `seen_at`: where in pending the caller saw it, counted from the tail; empty if unknown.
local front, count = ARGV[2] == '1', tonumber(ARGV[3])
local now, _, nanoseconds = clock(ARGV[4 + count * 2])
expect_places()

local codes, tasks = take(4, count, function(task)
  if task.state == 'active' then return -1 end
  if task.state == 'pending' and not front then return -2 end
  if task.state == 'scheduled' and is_parked(queue_prefix, task.id, task.order_key or task.limited_by) then return -7 end
end)
into_pending(tasks, front, now, nanoseconds)
return codes

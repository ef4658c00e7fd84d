-- surrender: delete a task of which another queue has a copy, if it is still as it was copied.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix task_id seen_at message state [now_ms]
-- RETURNS  1 deleted, 0 no such task, -3 it is not where its state says, -5 it changed meanwhile
-- include: clock checks hold places locks lanes limits taking
local message, state = ARGV[4], ARGV[5]
local _, _, nanoseconds = clock(ARGV[6])
expect_places()

local codes, tasks = take(2, 1, function(task)
  if task.state ~= state or redis.call('HGET', task.key, 'msg') ~= message then return -5 end
end)
for _, task in ipairs(tasks) do
  release(task.lock, task.id)
  redis.call('DEL', task.key)
  if task.limited_by then stop_waiting(queue_prefix, task.limited_by, task.id) end
  if task.order_key then leave_lane(queue_prefix, task.order_key, task.id, nanoseconds) end
end
return codes[1]

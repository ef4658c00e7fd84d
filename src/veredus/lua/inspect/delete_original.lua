-- delete_original: delete a task of which another queue has a copy, if it is still as it was copied.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix task_id seen_at:number message state
-- RETURNS  1 deleted, 0 no such task, -3 it is not where its state says, -5 it has changed since
-- NEEDS  clock ownership places lanes limits take_out
local _, _, nanoseconds = clock()
expect_places()

local code, task = take_one(task_id, seen_at, function(task)
  if task.state ~= state or redis.call('HGET', task.key, 'msg') ~= message then return -5 end
end)
if task then
  release(task.lock, task.id)
  redis.call('DEL', task.key)
  if task.limited_by then stop_waiting(queue_prefix, task.limited_by, task.id) end
  if task.order_key then leave_lane(queue_prefix, task.order_key, task.id, nanoseconds) end
end
return code

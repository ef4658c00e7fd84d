-- run: make tasks pending now, at the back of the queue or at its front.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix front:flag from_start:flag ROWS task_id seen_at:number
-- RETURNS  one code per task: 1 pending now, 0 no such task, -1 it is running, -2 it is pending already (front moves
--   it), -3 it is not where its state says, -7 it waits for its order key or for a limit
-- NEEDS  clock places lanes take_out put_in forget_run
-- With `from_start` durable tasks forget what they have done. `seen_at`: where in pending the caller saw it, counted from the tail; empty if unknown.
local now, _, nanoseconds = clock()
expect_places()

local wanted = {}
for i, task_id, seen_at in rows() do wanted[i] = { id = task_id, seen_at = seen_at } end
local codes, tasks = take(wanted, function(task)
  if task.state == 'active' then return -1 end
  if task.state == 'pending' and not front then return -2 end
  if task.state == 'scheduled' and is_parked(queue_prefix, task.id, task.order_key or task.limited_by) then return -7 end
end)
if from_start then
  for _, task in ipairs(tasks) do forget_run(queue_prefix, task.id) end
end
into_pending(tasks, front, now, nanoseconds)
return codes

-- delete: delete tasks that are not running, with their unique locks.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix ROWS task_id seen_at:number
-- RETURNS  one code per task: 1 deleted, 0 no such task, -1 it is running, -3 it is not where its state says
-- NEEDS  places take_out put_in
expect_places()

local wanted = {}
for i, task_id, seen_at in rows() do wanted[i] = { id = task_id, seen_at = seen_at } end
local codes, tasks = take(wanted, function(task)
  if task.state == 'active' then return -1 end
end)
into_nothing(tasks)
return codes

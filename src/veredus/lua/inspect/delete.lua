-- delete: remove tasks that nobody runs, with their unique locks.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix count {task_id seen_at}* [now_ms]
-- RETURNS  one code per task: 1 deleted, 0 no such task, -1 it is running, -3 it is not where its state says
-- include: clock checks chunks hold trim tell places locks lanes limits taking putting
local count = tonumber(ARGV[2])
expect_places()

local codes, tasks = take(3, count, function(task)
  if task.state == 'active' then return -1 end
end)
into_nothing(tasks)
return codes

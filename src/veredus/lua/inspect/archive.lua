-- archive: archive tasks that are not running, and keep the archive within its age and size.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix max_size:number max_age:number ROWS task_id seen_at:number
-- RETURNS  one code per task: 1 archived, 0 no such task, -1 it is archived already, -2 it is running, -3 it is not
--   where its state says
-- NEEDS  clock places take_out put_in
local now = clock()
expect_places()

local wanted = {}
for i, task_id, seen_at in rows() do wanted[i] = { id = task_id, seen_at = seen_at } end
local codes, tasks = take(wanted, function(task)
  if task.state == 'archived' then return -1 end
  if task.state == 'active' then return -2 end
end)
into_archive(tasks, math.floor(now / 1000), max_size, max_age)
return codes

-- archive: put tasks that nobody runs aside, and keep the archive within its age and size.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix max_size max_age count {task_id seen_at}* [now_ms]
-- RETURNS  one code per task: 1 archived, 0 no such task, -1 it is archived already, -2 it is running, -3 it is not
--   where its state says
-- include: clock checks chunks hold trim tell places locks lanes limits taking putting
local max_size, max_age, count = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = clock(ARGV[5 + count * 2])
expect_places()

local codes, tasks = take(5, count, function(task)
  if task.state == 'archived' then return -1 end
  if task.state == 'active' then return -2 end
end)
into_archive(tasks, math.floor(now / 1000), max_size, max_age)
return codes

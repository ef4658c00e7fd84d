-- run_all: make the first tasks of a container pending, in their order; called again until nothing is left.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix state group limit:number from_start:flag
-- RETURNS  {tasks now pending, ids that left the container}
-- NEEDS  clock places take_out put_in forget_run
local now, _, nanoseconds = clock()
expect_places()

local tasks, left = take_first(state, group, limit, true)
if from_start then
  for _, task in ipairs(tasks) do forget_run(queue_prefix, task.id) end
end
into_pending(tasks, false, now, nanoseconds)
return { #tasks, left }

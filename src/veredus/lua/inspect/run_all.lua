-- run_all: make the first tasks of a container pending, in their order; called again until nothing is left.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix state group limit [now_ms]
-- RETURNS  {tasks now pending, ids that left the container}
-- include: clock checks chunks hold trim tell places locks lanes limits taking due_group putting
local state, group, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
local now, _, nanoseconds = clock(ARGV[5])
expect_places()
if state == 'aggregating' then expect(group_prefix .. group, 'zset') end

local tasks, left = take_first(state, group, limit, true)
into_pending(tasks, false, now, nanoseconds)
return { #tasks, left }

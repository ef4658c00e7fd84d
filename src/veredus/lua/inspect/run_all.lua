-- run_all: make the first tasks of a container pending, in their order; called again until nothing is left.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix state group limit:number
-- RETURNS  {tasks now pending, ids that left the container}
-- NEEDS  clock checks places take_out put_in
local now, _, nanoseconds = clock()
expect_places()
if state == 'aggregating' then expect(keys.group(group), 'zset') end

local tasks, left = take_first(state, group, limit, true)
into_pending(tasks, false, now, nanoseconds)
return { #tasks, left }

-- delete_all: remove the first tasks of a container, with their unique locks; called again until nothing is left.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix state group limit [now_ms]
-- RETURNS  {tasks deleted, ids that left the container}
-- include: clock checks chunks hold trim tell places locks lanes limits taking putting
local state, group, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
expect_places()
if state == 'aggregating' then expect(group_prefix .. group, 'zset') end

local tasks, left = take_first(state, group, limit)
into_nothing(tasks)
return { #tasks, left }

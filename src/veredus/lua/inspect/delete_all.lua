-- delete_all: delete the first tasks of a container, with their unique locks; called again until nothing is left.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix state group limit:number
-- RETURNS  {tasks deleted, ids that left the container}
-- NEEDS  places take_out put_in
expect_places()

local tasks, left = take_first(state, group, limit)
into_nothing(tasks)
return { #tasks, left }

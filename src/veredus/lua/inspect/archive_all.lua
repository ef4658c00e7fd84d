-- archive_all: archive the first tasks of a container; called again until nothing is left.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix state group limit:number max_size:number max_age:number
-- RETURNS  {tasks now archived, ids that left the container, old ones that were deleted to keep the archive within
--   its size}
-- NEEDS  clock places take_out put_in
local now = clock()
expect_places()

local tasks, left = take_first(state, group, limit)
local trimmed = into_archive(tasks, math.floor(now / 1000), max_size, max_age)
return { #tasks, left, trimmed }

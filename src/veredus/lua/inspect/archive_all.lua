-- archive_all: put the first tasks of a container aside; called again until nothing is left.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix state group limit max_size max_age [now_ms]
-- RETURNS  {tasks now archived, ids that left the container, old ones that were deleted to keep the archive within
--   its size}
-- include: clock checks chunks hold trim tell places locks lanes limits taking putting
local state, group, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = clock(ARGV[7])
expect_places()
if state == 'aggregating' then expect(group_prefix .. group, 'zset') end

local tasks, left = take_first(state, group, limit)
local trimmed = into_archive(tasks, math.floor(now / 1000), tonumber(ARGV[5]), tonumber(ARGV[6]))
return { #tasks, left, trimmed }

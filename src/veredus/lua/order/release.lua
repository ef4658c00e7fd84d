-- release: let a lane go on that is held up by an archived task; that task stays in the archive.
-- KEYS  lanes archived
-- ARGV  queue_prefix order_key
-- RETURNS  id of the task that held it up, or false if none did
-- NEEDS  clock checks sets lanes
-- Run again later, the archived task takes a new place at the end of its lane.
local _, _, nanoseconds = clock()
expect(lanes, 'zset')
expect(archived, 'zset')
expect(keys.lane(order_key), 'zset')

local id = first_of(keys.lane(order_key))
local state = id and redis.pcall('HGET', keys.task(id), 'state')
if state ~= 'archived' then return false end
leave_lane(queue_prefix, order_key, id, nanoseconds)
return id

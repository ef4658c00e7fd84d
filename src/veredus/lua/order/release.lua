-- release: let a lane go on that is held up by an archived task; that task stays in the archive.
-- KEYS  lanes archived
-- ARGV  queue_prefix order_key [now_ms]
-- RETURNS  id of the task that held it up, or false if none did
-- include: clock checks lanes
-- Run again later, the archived task takes a new place at the end of its lane.
local queue_prefix, order_key = ARGV[1], ARGV[2]
local _, _, nanoseconds = clock(ARGV[3])
local lane = queue_prefix .. 'lane:' .. order_key
expect(KEYS[1], 'zset')
expect(KEYS[2], 'zset')
expect(lane, 'zset')

local id = redis.call('ZRANGE', lane, 0, 0)[1]
local state = id and redis.pcall('HGET', queue_prefix .. 't:' .. id, 'state')
if state ~= 'archived' then return false end
leave_lane(queue_prefix, order_key, id, nanoseconds)
return id

-- expire: delete completed tasks whose retention has ended.
-- KEYS  completed
-- ARGV  task_prefix limit [now_ms]
-- RETURNS  number deleted
-- include: clock chunks
local completed = KEYS[1]
local task_prefix, limit = ARGV[1], ARGV[2]
local now = clock(ARGV[3])

local ids = redis.call('ZRANGEBYSCORE', completed, '-inf', whole(math.floor(now / 1000)), 'LIMIT', 0, limit)
local keys = {}
for i, id in ipairs(ids) do keys[i] = task_prefix .. id end
in_chunks('ZREM', completed, ids)
delete_all(keys)
return #ids

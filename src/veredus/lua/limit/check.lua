-- check: whether a task holds room within a limit though it does not run; it is freed if told to.
-- KEYS  limited
-- ARGV  queue_prefix scope task_id apply [now_ms]
-- RETURNS  1 if it does (or did), else 0
-- include: clock checks lanes limits
-- Such room would lapse with the lease that it was taken for; this is for those who do not want to wait.
local queue_prefix, scope, id, apply = unpack(ARGV)
local now, _, nanoseconds = clock(ARGV[5])
local slots = queue_prefix .. 'slots:' .. scope
expect(KEYS[1], 'zset')
if not redis.call('ZSCORE', slots, id) then return 0 end
if redis.pcall('HGET', queue_prefix .. 't:' .. id, 'state') == 'active' then return 0 end
if apply == '1' then free_slots(queue_prefix, cjson.encode({ scope }), id, now, nanoseconds) end
return 1

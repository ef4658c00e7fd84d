-- check: whether a task holds room within a limit though it does not run; `apply` frees it.
-- KEYS  limited
-- ARGV  queue_prefix scope task_id apply:flag
-- RETURNS  1 if it does (or did), else 0
-- NEEDS  clock checks limits
-- Such room would lapse with the lease that it was taken for; this is for those who do not want to wait.
local now, _, nanoseconds = clock()
expect(limited, 'zset')
if not redis.call('ZSCORE', keys.slots(scope), task_id) then return 0 end
if redis.pcall('HGET', keys.task(task_id), 'state') == 'active' then return 0 end
if apply then free_slots(queue_prefix, cjson.encode({ scope }), task_id, now, nanoseconds) end
return 1

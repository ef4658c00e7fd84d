-- progress: store how far a running task is and tell those who wait, if it is still this owner's.
-- KEYS  lease
-- ARGV  task_prefix task_id owner progress [now_ms]
-- RETURNS  1 if it was stored, 0 if the task is no longer this owner's
-- include: grow hold tell
local lease = KEYS[1]
local task_prefix, id, owner, progress = unpack(ARGV)
local key = task_prefix .. id
local held = holds(key, lease, id, owner)
if not held then return 0 end
grow('HSET', key, 'progress', progress)
tell(held[2], 'progress', key, progress)
return 1

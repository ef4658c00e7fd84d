-- write: store a running task's result before it ends, if it is still this owner's; never makes a hash of its own.
-- KEYS  lease
-- ARGV  task_prefix task_id owner result [now_ms]
-- RETURNS  1 if it was stored, 0 if the task is no longer this owner's
-- include: grow hold
local lease = KEYS[1]
local task_prefix, id, owner, result = unpack(ARGV)
local key = task_prefix .. id
if not holds(key, lease, id, owner) then return 0 end
grow('HSET', key, 'result', result)
return 1

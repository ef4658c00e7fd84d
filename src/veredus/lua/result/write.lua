-- write: store a running task's result before it ends, if this owner still holds it; never creates a hash.
-- KEYS  lease
-- ARGV  queue_prefix task_id owner result
-- RETURNS  1 if it was stored, 0 if this owner no longer holds the task
-- NEEDS  grow ownership
local key = keys.task(task_id)
if not owned(key, lease, task_id, owner) then return 0 end
grow('HSET', key, 'result', result)
return 1

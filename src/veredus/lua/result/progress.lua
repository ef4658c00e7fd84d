-- progress: store how far a running task is and notify its waiters, if this owner still holds it.
-- KEYS  lease
-- ARGV  queue_prefix task_id owner progress
-- RETURNS  1 if it was stored, 0 if this owner no longer holds the task
-- NEEDS  grow notify_waiters ownership
local key = keys.task(task_id)
local is_owned, waited = owned(key, lease, task_id, owner, 'waited')
if not is_owned then return 0 end
grow('HSET', key, 'progress', progress)
notify_waiters(waited, 'progress', key, progress)
return 1

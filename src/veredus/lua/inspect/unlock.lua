-- unlock: delete a unique lock whose task is gone or names another lock.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix lock holder apply:flag
-- RETURNS  1 if it is (or was) such a lock, else 0
-- NEEDS  fields locks
if redis.pcall('GET', lock) ~= holder then return 0 end
local key = keys.task(holder)
local task = read_task(key, 'unique_key', 'msg')
if task and task.msg and lock_of(key, task.unique_key, true) == lock then return 0 end
if apply then redis.call('DEL', lock) end
return 1

-- edit: replace the message of a waiting task if it is still the one that was read, and move its unique lock with it.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix task_id old_message new_message new_lock from_start:flag
-- RETURNS  1 replaced, 0 no such task, -1 its state does not allow it, -2 another task holds the new lock, -5 it
--   has changed since, -8 it is a durable task that waits or has children, and is not to begin from its start
-- NEEDS  clock take_out forget_run waits
local task = look(task_id)
if not task then return 0 end
if not ({ pending = 1, scheduled = 1, retry = 1, archived = 1 })[task.state] then return -1 end
if redis.call('HGET', task.key, 'msg') ~= old_message then return -5 end
if not from_start and is_bound(task.key) then return -8 end

if task.lock ~= '' and new_lock ~= task.lock then
  if redis.pcall('GET', task.lock) == task_id then
    if redis.call('EXISTS', new_lock) == 1 then return -2 end
    local left = redis.call('PTTL', task.lock)
    if left > 0 then redis.call('SET', new_lock, task_id, 'PX', left) else redis.call('SET', new_lock, task_id) end
    redis.call('DEL', task.lock)
  end
  redis.call('HSET', task.key, 'unique_key', new_lock)
end
redis.call('HSET', task.key, 'msg', new_message)
if from_start and forget_run(queue_prefix, task_id) and task.state == 'scheduled' then
  local _, _, nanoseconds = clock()
  call_back(queue_prefix, task_id, new_lock ~= '' and new_lock, nanoseconds)
end
return 1

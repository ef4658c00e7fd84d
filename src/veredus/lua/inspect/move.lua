-- move: move a task that is not running to another queue, in one step; it keeps its state, its due time and its fields.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets target_pending target_scheduled target_retry target_archived target_completed target_due target_groups queues
-- ARGV  queue_prefix task_id seen_at:number old_message new_message new_lock target target_prefix channel from_start:flag
-- RETURNS  1 moved, 0 no such task, -1 it is running, -2 another task of the target queue holds the lock, -3 it is
--   not where its state says, -5 it has changed since, -6 the target queue has a task with this id, -8 it is a durable
--   task that waits or has children, and is not to begin from its start
-- NEEDS  clock checks ownership wakeup places lanes limits take_out task_exists waking forget_run
-- For servers that hold both queues; in a cluster, stage_copy, delete_original and release_copy do the same in three steps.
local TO = { scheduled = target_scheduled, retry = target_retry, archived = target_archived, completed = target_completed }
local now, _, nanoseconds = clock()
local key = target_keys.task(task_id)
expect_places()
expect(target_pending, 'list')
expect(target_groups, 'set')
expect(queues, 'set')
for _, set in ipairs({ target_scheduled, target_retry, target_archived, target_completed, target_due }) do expect(set, 'zset') end

local score, exact, left, was_parked
local code, task = take_one(task_id, seen_at, function(task)
  if task.state == 'active' then return -1 end
  if redis.call('HGET', task.key, 'msg') ~= old_message then return -5 end
  if not from_start and is_bound(task.key) then return -8 end
  if redis.call('EXISTS', key) == 1 and not is_late_result(key) then return -6 end
  if task.lock ~= '' and redis.pcall('GET', task.lock) == task_id then
    if redis.call('EXISTS', new_lock) == 1 then return -2 end
    left = redis.call('PTTL', task.lock)
  end
  local set = task.state == 'aggregating' and keys.group(task.group or '') or SETS[task.state]
  score, exact = set and score_in(set, task_id), score_in(due, task_id)
  was_parked = task.state == 'scheduled' and is_parked(queue_prefix, task_id, task.order_key or task.limited_by)
end)
if not task then return code end

if from_start and forget_run(queue_prefix, task_id) then was_parked = task.state == 'scheduled' end
local fields = redis.call('HGETALL', task.key)
redis.call('DEL', key)
for i = 1, #fields, 2 do redis.call('HSET', key, fields[i], fields[i + 1]) end
redis.call('HSET', key, 'msg', new_message)
redis.call('HDEL', key, 'held', 'limited_by')
if task.lock ~= '' then redis.call('HSET', key, 'unique_key', new_lock) end
release(task.lock, task_id)
redis.call('DEL', task.key)
if task.limited_by then stop_waiting(queue_prefix, task.limited_by, task_id) end
if task.order_key then leave_lane(queue_prefix, task.order_key, task_id, nanoseconds) end
if left and left > 0 then redis.call('SET', new_lock, task_id, 'PX', left) end

if task.state == 'pending' or was_parked then
  if task.order_key and not join_lane(target_prefix, task.order_key, task_id, now) then
    park(target_prefix, task_id, nanoseconds)
  else
    redis.call('HSET', key, 'state', 'pending')
    redis.call('LPUSH', target_pending, task_id)
    wake(target_prefix)
  end
elseif task.state == 'aggregating' then
  redis.call('ZADD', target_keys.group(task.group), score, task_id)
  redis.call('SADD', target_groups, task.group)
else
  local before = earliest(target_due, target_scheduled, target_retry)
  redis.call('ZADD', TO[task.state], score, task_id)
  if task.state == 'scheduled' or task.state == 'retry' then
    if exact then redis.call('ZADD', target_due, exact, task_id) end
    announce(channel, before, tonumber(exact or score * 1000), now)
  end
end
redis.call('SADD', queues, target)
return 1

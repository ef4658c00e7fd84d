-- move: bring a task that nobody runs into another queue, in one step; it keeps its state, its due time and its fields.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets target_pending target_scheduled target_retry target_archived target_completed target_due target_groups queues
-- ARGV  queue_prefix task_id seen_at old_message new_message new_lock target target_prefix channel [now_ms]
-- RETURNS  1 moved, 0 no such task, -1 it is running, -2 another task of the target queue holds the lock, -3 it is
--   not where its state says, -5 it changed meanwhile, -6 the target queue has a task with this id
-- include: clock checks hold wakeup places locks lanes limits taking
-- For servers that hold both queues; in a cluster, park, surrender and unpark do the same in three steps.
local id, _, old, new, new_lock, target, target_prefix, channel = unpack(ARGV, 2, 9)
local to_pending, to_scheduled, to_retry, to_archived, to_completed, to_due, to_groups, queues = unpack(KEYS, 11, 18)
local TO = { scheduled = to_scheduled, retry = to_retry, archived = to_archived, completed = to_completed }
local now, _, nanoseconds = clock(ARGV[10])
local key = target_prefix .. 't:' .. id
expect_places()
expect(to_pending, 'list')
expect(to_groups, 'set')
for _, set in ipairs({ to_scheduled, to_retry, to_archived, to_completed, to_due }) do expect(set, 'zset') end

local score, exact, left, was_parked
local codes, tasks = take(2, 1, function(task)
  if task.state == 'active' then return -1 end
  if redis.call('HGET', task.key, 'msg') ~= old then return -5 end
  if redis.call('EXISTS', key) == 1 then return -6 end
  if task.lock ~= '' and redis.pcall('GET', task.lock) == id then
    if redis.call('EXISTS', new_lock) == 1 then return -2 end
    left = redis.call('PTTL', task.lock)
  end
  local set = task.state == 'aggregating' and group_prefix .. (task.group or '') or SETS[task.state]
  score, exact = set and score_in(set, id), score_in(due, id)
  was_parked = task.state == 'scheduled' and is_parked(queue_prefix, id, task.order_key or task.limited_by)
end)
local task = tasks[1]
if not task then return codes[1] end

local fields = redis.call('HGETALL', task.key)
for i = 1, #fields, 2 do redis.call('HSET', key, fields[i], fields[i + 1]) end
redis.call('HSET', key, 'msg', new)
redis.call('HDEL', key, 'held', 'limited_by')
if task.lock ~= '' then redis.call('HSET', key, 'unique_key', new_lock) end
release(task.lock, id)
redis.call('DEL', task.key)
if task.limited_by then stop_waiting(queue_prefix, task.limited_by, id) end
if task.order_key then leave_lane(queue_prefix, task.order_key, id, nanoseconds) end
if left and left > 0 then redis.call('SET', new_lock, id, 'PX', left) end

if task.state == 'pending' or was_parked then
  if task.order_key and not join_lane(target_prefix, task.order_key, id, now) then
    park(target_prefix, id, nanoseconds)
  else
    redis.call('HSET', key, 'state', 'pending')
    redis.call('LPUSH', to_pending, id)
  end
elseif task.state == 'aggregating' then
  redis.call('ZADD', target_prefix .. 'g:' .. task.group, score, id)
  redis.call('SADD', to_groups, task.group)
else
  local before = earliest(to_due, to_scheduled, to_retry)
  redis.call('ZADD', TO[task.state], score, id)
  if task.state == 'scheduled' or task.state == 'retry' then
    if exact then redis.call('ZADD', to_due, exact, id) end
    announce(channel, before, tonumber(exact or score * 1000), now)
  end
end
redis.call('SADD', queues, target)
return 1

-- cancel: end a task that waits, or mark one that runs, so that the worker that has it ends it as asked.
-- KEYS  pending scheduled retry archived due groups
-- ARGV  queue_prefix channel max_size:number max_age:number task_id action expected message
--   with_children:flag
-- RETURNS  {outcome, more}: cancelled (`children` if it had some that are to be cancelled), cancelling, already ended, not found,
--   not running, or reword: archiving needs the message, which is returned, with its reason in it; `expected` is not (or no longer) it
-- NEEDS  clock checks ownership locks trim notify_waiters lanes limits orphans
-- The mark is a field of the task's hash, so it outlives a lost publish, a dead worker and a way through pending. It counts for
-- the attempt or wait that it was made for (include/marks.lua).
local now, _, nanoseconds = clock()
local seconds = math.floor(now / 1000)
local key = keys.task(task_id)

local fields = redis.call('HMGET', key, 'state', 'msg', 'unique_key', 'group', 'waited', 'order_key', 'limited_by')
local state, old, lock, group, waited, order_key, limited_by = unpack(fields, 1, 7)
if not state or not old then return { 'not found', '' } end
if not lock and group then lock = lock_in(old) end -- Go names the lock of a grouped task nowhere else
if state == 'completed' or state == 'archived' then return { 'already ended', '' } end
if state == 'active' then
  with_children = with_children and action ~= 'retry'
  if with_children then note_orphans(queue_prefix, task_id, action) end
  redis.call('HSET', key, 'cancel', action, 'cancel_of', redis.sha1hex(old))
  if with_children then redis.call('HSET', key, 'cancel_kids', action) end
  redis.pcall('PUBLISH', channel, task_id)
  return { 'cancelling', '' }
end
if action == 'retry' then return { 'not running', '' } end

local places = { scheduled = scheduled, retry = retry, aggregating = group and keys.group(group) }
local place = places[state]
if state == 'pending' then
  expect(pending, 'list')
elseif not place then
  error('a task in the state ' .. state .. ' cannot be cancelled')
else
  expect(place, 'zset')
  -- Taken out of its group, it is being made part of another task: that one can be cancelled, this one has ended.
  if state == 'aggregating' and not redis.call('ZSCORE', place, task_id) then return { 'already ended', '' } end
end
expect(due, 'zset')
expect(groups, 'set')
expect(archived, 'zset')
if action == 'archive' and expected ~= old then return { 'reword', old } end

local has_children = with_children and note_orphans(queue_prefix, task_id, action)
if place then redis.call('ZREM', place, task_id) else redis.call('LREM', pending, 1, task_id) end
redis.call('ZREM', due, task_id)
if state == 'aggregating' and redis.call('ZCARD', place) == 0 then redis.call('SREM', groups, group) end
release(lock, task_id)
if action == 'archive' then
  redis.call('ZADD', archived, whole(seconds), task_id)
  redis.call('HSET', key, 'msg', message, 'state', 'archived')
  redis.call('HDEL', key, 'pending_since', 'waited', 'cancel', 'cancel_of', 'limited_by', 'traceback')
  keep_within(archived, max_size, max_age, seconds, 100)
  notify_waiters(waited, 'archived', key)
else
  redis.call('DEL', key)
  notify_waiters(waited, 'cancelled', key)
end
if limited_by then stop_waiting(queue_prefix, limited_by, task_id) end
if order_key then yield_lane(queue_prefix, order_key, task_id, nanoseconds) end
return { 'cancelled', has_children and 'children' or '' }

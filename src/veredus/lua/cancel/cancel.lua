-- cancel: end a task that waits, or mark one that runs, so that whoever has it ends it as asked.
-- KEYS  pending scheduled retry archived due groups
-- ARGV  task_prefix group_prefix channel max_size max_age task_id action expected message [now_ms]
-- RETURNS  {outcome, message}: cancelled, cancelling, already ended, not found, not running, or reword: archiving needs
--   the message with its reason in it, and `expected` is not (or no longer) what the task has
-- include: clock checks chunks hold locks trim tell lanes limits
-- The mark is a field of the task's hash, so it outlives a lost publish, a dead worker and a way through pending. It counts for
-- the attempt or wait that it was made for (include/marks.lua).
local pending, scheduled, retry, archived, due, groups = unpack(KEYS)
local task_prefix, group_prefix, channel, max_size, max_age, id, action, expected, message = unpack(ARGV)
local now, _, nanoseconds = clock(ARGV[10])
local seconds = math.floor(now / 1000)
local key = task_prefix .. id

local fields = redis.call('HMGET', key, 'state', 'msg', 'unique_key', 'group', 'waited', 'order_key', 'limited_by')
local state, old, lock, group, waited = fields[1], fields[2], fields[3], fields[4], fields[5]
if not state or not old then return { 'not found', '' } end
if not lock and group then lock = lock_in(old) end -- Go names the lock of a grouped task nowhere else
if state == 'completed' or state == 'archived' then return { 'already ended', '' } end
if state == 'active' then
  redis.call('HSET', key, 'cancel', action, 'cancel_of', redis.sha1hex(old))
  redis.pcall('PUBLISH', channel, id)
  return { 'cancelling', '' }
end
if action == 'retry' then return { 'not running', '' } end

local places = { scheduled = scheduled, retry = retry, aggregating = group and group_prefix .. group }
local place = places[state]
if state == 'pending' then
  expect(pending, 'list')
elseif not place then
  error('a task in the state ' .. state .. ' cannot be cancelled')
else
  expect(place, 'zset')
  -- Taken out of its group, it is being made part of another task: that one can be cancelled, this one has ended.
  if state == 'aggregating' and not redis.call('ZSCORE', place, id) then return { 'already ended', '' } end
end
expect(due, 'zset')
expect(groups, 'set')
expect(archived, 'zset')
if action == 'archive' and expected ~= old then return { 'reword', old } end

if place then redis.call('ZREM', place, id) else redis.call('LREM', pending, 1, id) end
redis.call('ZREM', due, id)
if state == 'aggregating' and redis.call('ZCARD', place) == 0 then redis.call('SREM', groups, group) end
release(lock, id)
if action == 'archive' then
  redis.call('ZADD', archived, whole(seconds), id)
  redis.call('HSET', key, 'msg', message, 'state', 'archived')
  redis.call('HDEL', key, 'pending_since', 'waited', 'cancel', 'cancel_of', 'limited_by', 'traceback')
  keep_within(archived, task_prefix, tonumber(max_size), tonumber(max_age), seconds, 100)
  tell(waited, 'archived', key)
else
  redis.call('DEL', key)
  tell(waited, 'cancelled', key)
end
local queue_prefix = string.sub(task_prefix, 1, -3)
if fields[7] then stop_waiting(queue_prefix, fields[7], id) end
if fields[6] then yield_lane(queue_prefix, fields[6], id, nanoseconds) end
return { 'cancelled', '' }

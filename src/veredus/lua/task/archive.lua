-- archive: put tasks that failed for good aside, and keep the archive within its age and size.
-- KEYS  active lease archived processed failed
-- ARGV  task_prefix max_size max_age count {task_id owner unique_key message original is_failure traceback}* [now_ms]
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- include: clock checks chunks hold trim counters tell lanes limits
-- `original` keeps the bytes of a message that could not be read; `message` is then a readable stand-in for Go's tools.
-- `is_failure` is 0 for a task that was cancelled: it has run, but did not fail.
local active, lease, archived, processed, failed = unpack(KEYS)
local task_prefix, max_size, max_age, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now, _, nanoseconds = clock(ARGV[5 + count * 7])
local seconds = math.floor(now / 1000)
expect(active, 'list')
expect(archived, 'zset')

local lost, failures = {}, 0
for i = 1, count do
  local id, owner, lock, message, original, is_failure, traceback = unpack(ARGV, i * 7 - 2, i * 7 + 4)
  local key = task_prefix .. id
  local held = holds(key, lease, id, owner)
  if held then
    redis.call('LREM', active, -1, id)
    redis.call('ZREM', lease, id)
    redis.call('ZADD', archived, whole(seconds), id)
    redis.call('HSET', key, 'msg', message, 'state', 'archived')
    if original ~= '' then redis.call('HSET', key, 'original', original) end
    redis.call('HDEL', key, 'held', 'waited', 'cancel', 'cancel_of', 'slots', 'traceback')
    if traceback ~= '' then redis.call('HSET', key, 'traceback', traceback) end
    if is_failure == '1' then failures = failures + 1 end
    release(lock, id)
    local queue_prefix = string.sub(task_prefix, 1, -3)
    if held[4] then yield_lane(queue_prefix, held[4], id, nanoseconds) end
    if held[5] then free_slots(queue_prefix, held[5], id, now, nanoseconds) end
    tell(held[2], 'archived', key)
  else
    lost[#lost + 1] = i
  end
end

keep_within(archived, task_prefix, max_size, max_age, seconds, count + 100)
tally(now, processed, count - #lost, failed, failures)
return lost

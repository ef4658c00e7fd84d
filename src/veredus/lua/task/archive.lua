-- archive: put tasks that failed for good aside, and keep the archive within its age and size.
-- KEYS  active lease archived
-- ARGV  queue_prefix max_size:number max_age:number
--   ROWS task_id owner unique_key message original is_failure:flag traceback attempt
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- NEEDS  clock checks active ownership trim counters notify_waiters lanes limits attempts
-- `original` keeps the bytes of a message that could not be read; `message` is then a readable stand-in for Go's tools.
-- `is_failure` is false for a task that was cancelled: it has run, but did not fail.
local now, _, nanoseconds = clock()
local seconds = math.floor(now / 1000)
expect(active, 'list')
expect(archived, 'zset')

local lost, failures = {}, 0
for i, task_id, owner, unique_key, message, original, is_failure, traceback, attempt in rows() do
  local key = keys.task(task_id)
  local is_owned, waited, order_key, slots, count, run =
    owned(key, lease, task_id, owner, 'waited', 'order_key', 'slots', 'attempts', 'run')
  if is_owned then
    leave_active(active, lease, key, task_id, 'waited', 'cancel', 'cancel_of', 'traceback')
    redis.call('ZADD', archived, whole(seconds), task_id)
    redis.call('HSET', key, 'msg', message, 'state', 'archived', attempt_fields(count, attempt))
    if original ~= '' then redis.call('HSET', key, 'original', original) end
    if traceback ~= '' then redis.call('HSET', key, 'traceback', traceback) end
    if run then redis.call('HSET', key, 'resumed', '1') end -- run again, a durable task forgets the failures that it kept
    if is_failure then failures = failures + 1 end
    release(unique_key, task_id)
    if order_key then yield_lane(queue_prefix, order_key, task_id, nanoseconds) end
    if slots then free_slots(queue_prefix, slots, task_id, now, nanoseconds) end
    notify_waiters(waited, 'archived', key)
  else
    lost[#lost + 1] = i
  end
end

keep_within(archived, max_size, max_age, seconds, rows_count + 100)
tally(now, rows_count - #lost, failures)
return lost

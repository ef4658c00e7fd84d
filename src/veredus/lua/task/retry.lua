-- retry: take failed tasks out of active and lease, store what happened and make them due again, all or nothing.
-- KEYS  active lease retry scheduled due
-- ARGV  queue_prefix channel ROWS task_id owner message delay_ms:number is_failure:flag front:flag crashed:flag traceback
--   attempt
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- NEEDS  clock checks active ownership counters wakeup limits due_group new_task attempts
-- A retry is a delayed task like any other: same index, same rule for waking the forwarders.
local now, now_up, nanoseconds = clock()
expect(active, 'list')
expect(retry, 'zset')
expect(due, 'zset')

local before, first_new = earliest(due, scheduled, retry), nil
local lost, failures = {}, 0
for i, task_id, owner, message, delay_ms, is_failure, front, crashed, traceback, attempt in rows() do
  local key = keys.task(task_id)
  local is_owned, cancel, unique_key, slots, group, count =
    owned(key, lease, task_id, owner, 'cancel', 'unique_key', 'slots', 'group', 'attempts')
  if is_owned then
    -- Asked since then to end otherwise: due at once, and the worker that dequeues it ends it as asked.
    local is_cancelled = cancel and cancel ~= 'retry'
    local at = now_up + (is_cancelled and 0 or delay_ms)
    leave_active(active, lease, key, task_id, 'front', 'traceback')
    plan_task(retry, due, task_id, at)
    redis.call('HSET', key, 'msg', message, 'state', 'retry', attempt_fields(count, attempt))
    if traceback ~= '' then redis.call('HSET', key, 'traceback', traceback) end
    if group then leave_group_until_due(key, group, unique_key) end -- Go's inspector ran this member alone
    keep_lock(unique_key, task_id, at - now)
    if slots then free_slots(queue_prefix, slots, task_id, now, nanoseconds) end
    if is_cancelled then
      redis.call('HSET', key, 'cancel_of', redis.sha1hex(message))
    elseif cancel then
      redis.call('HDEL', key, 'cancel', 'cancel_of')
    end
    if front then redis.call('HSET', key, 'front', '1') end -- forward brings it to the front of pending
    if crashed then redis.pcall('HINCRBY', key, 'losses', 1) end -- as recover counts those of a lost worker
    if is_failure then
      failures = failures + 1
    else
      redis.pcall('HINCRBY', key, 'deferrals', 1) -- the message counts failures only
    end
    if not first_new or at < first_new then first_new = at end
  else
    lost[#lost + 1] = i
  end
end
announce(channel, before, first_new, now)
tally(now, failures, failures)
return lost

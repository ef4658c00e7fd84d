-- park: take a task off its worker because its handler waits for something, unless that has come already.
-- KEYS  active lease pending scheduled retry due waits
-- ARGV  queue_prefix channel ROWS task_id owner kind ends:number field
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- NEEDS  clock checks active grow ownership wakeup limits waits waking
-- `ends` and `field` are those of include/waits.lua. It is no attempt: nothing is counted. What comes while the handler is still
-- running is found here: then the task is the next to run. So is one that is to be cancelled: the worker that dequeues it ends it.
local now, _, nanoseconds = clock()
expect(active, 'list')
expect(pending, 'list')
expect(scheduled, 'zset')
expect(due, 'zset')
expect(waits, 'zset')
may_grow(scheduled)

local before, first_new = earliest(due, scheduled, retry), nil
local lost = {}
for i, task_id, owner, kind, ends, field in rows() do
  local key = keys.task(task_id)
  local is_owned, cancel, unique_key, slots = owned(key, lease, task_id, owner, 'cancel', 'unique_key', 'slots')
  if is_owned then
    local waiting = kind .. ' ' .. whole(ends) .. ' ' .. whole(now) .. ' ' .. field
    leave_active(active, lease, key, task_id)
    if slots then free_slots(queue_prefix, slots, task_id, now, nanoseconds) end
    if cancel or is_wait_over(key, waiting, now) then
      redis.call('RPUSH', pending, task_id)
      redis.call('HSET', key, 'state', 'pending', 'pending_since', nanoseconds)
      keep_lock(unique_key, task_id, 0)
      wake(queue_prefix)
    else
      local at = set_aside(queue_prefix, task_id, waiting, unique_key, now)
      if at and (not first_new or at < first_new) then first_new = at end
    end
  else
    lost[#lost + 1] = i
  end
end
announce(channel, before, first_new, now)
return lost

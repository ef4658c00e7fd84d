-- reschedule: make tasks due at another time, to the millisecond.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix channel due_at count {task_id seen_at}* [now_ms]
-- RETURNS  one code per task: 1 rescheduled, 0 no such task, -1 it is running, -3 it is not where its state says
-- include: clock checks chunks hold wakeup places locks taking
-- One that waits for a retry still does; any other is scheduled.
local channel, count = ARGV[2], tonumber(ARGV[4])
local now, now_up = clock(ARGV[5 + count * 2])
local at = instant(ARGV[3], now_up)
expect_places()

local before = earliest(due, scheduled, retry)
local codes, tasks = take(5, count, function(task)
  if task.state == 'active' then return -1 end
end)
for _, task in ipairs(tasks) do
  local state = task.state == 'retry' and 'retry' or 'scheduled'
  redis.call('ZADD', SETS[state], whole(math.ceil(at / 1000)), task.id)
  redis.call('ZADD', due, whole(at), task.id)
  redis.call('HSET', task.key, 'state', state)
  redis.call('HDEL', task.key, 'pending_since', 'owner', 'until')
  -- The lock shall not end before the task begins.
  if task.lock ~= '' and redis.pcall('GET', task.lock) == task.id then
    local left = redis.call('PTTL', task.lock)
    if left > 0 and left < at - now + 1000 then redis.call('PEXPIRE', task.lock, whole(at - now + 1000)) end
  end
end
if #tasks > 0 then announce(channel, before, at, now) end
return codes

-- NEEDS  nothing

-- Idle workers: `idle` has the channels of workers that wait for work, by the time in milliseconds since when. Only a worker that
-- finds the queue empty enters it, in the same step; a script that puts a task into pending takes one out and wakes it; and a worker
-- that leaves tasks there wakes the next one. So while tasks are pending, either no worker is idle, or one that was woken is about to look.

-- wake: notify the worker that has been idle longest that the queue has work. If it has gone, the next one is notified.
-- It comes last and never fails a script: workers also look by themselves, if less often.
local function wake(queue_prefix)
  local idle = keys.idle()
  for _ = 1, 1000 do
    local channel = unpack(redis.pcall('ZPOPMIN', idle), 1, 1)
    if not channel or redis.pcall('PUBLISH', channel, queue_prefix) ~= 0 then return end
  end
end

-- be_idle: enter a worker that found the queue empty. On a full server that needs a first write which is not refused.
local function be_idle(queue_prefix, channel, now)
  local idle = keys.idle()
  redis.call('DEL', keys.missing(idle))
  redis.pcall('ZADD', idle, string.format('%.0f', now), channel)
  redis.pcall('PEXPIRE', idle, 3600000)
end

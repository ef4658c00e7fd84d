-- survey: which of many queues have anything that a sweep looks for. All of them are on one server.
-- KEYS  queues
-- ARGV  sought ROWS queue_prefix
-- RETURNS  {now_ms, {position (from 1) of each queue that has something, ...}}
-- NEEDS  clock
-- `sought` is what the sweep looks for: leases (also order keys, tasks that wait, and children to cancel), due (what waits for its time or for a limit), or kept (completed tasks).
-- An empty key does not exist, so that one EXISTS per queue answers it.
local now = clock()
local found = {}
for i, queue_prefix in rows() do
  local number
  if sought == 'leases' then
    number = redis.call('EXISTS', keys.lease(), keys.active(), keys.lanes(), keys.waits(), keys.orphans())
  elseif sought == 'due' then
    number = redis.call('EXISTS', keys.scheduled(), keys.retry(), keys.due(), keys.limited())
  else
    number = redis.call('EXISTS', keys.completed(), keys.due())
  end
  if number > 0 then found[#found + 1] = i end
end
return { now, found }

-- wake: wake another worker if tasks are pending; for a worker that was woken and cannot take any.
-- KEYS  pending
-- ARGV  queue_prefix
-- RETURNS  the number of pending tasks
-- NEEDS  waking
local length = redis.call('LLEN', pending)
if length > 0 then wake(queue_prefix) end
return length

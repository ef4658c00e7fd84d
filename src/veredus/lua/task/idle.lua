-- idle: enter a worker as idle if the queue is empty.
-- KEYS  pending
-- ARGV  queue_prefix channel
-- RETURNS  the number of pending tasks; 0 means that the worker was entered
-- NEEDS  clock waking
local now = clock()
local length = redis.call('LLEN', pending)
if length == 0 then be_idle(queue_prefix, channel, now) end
return length

-- expire: delete completed tasks whose retention has ended, and due times of tasks that no longer wait.
-- KEYS  completed scheduled retry due
-- ARGV  queue_prefix limit
-- RETURNS  number deleted of either, whichever is more
-- NEEDS  chunks clock
-- Go's forwarder moves a task of ours without looking at the index of due times. Our forwarder deletes the entry when it is
-- due; for a queue that only Go serves, this script does.
local now = clock()
local ids = redis.call('ZRANGEBYSCORE', completed, '-inf', whole(math.floor(now / 1000)), 'LIMIT', 0, limit)
local tasks = {}
for i, id in ipairs(ids) do tasks[i] = keys.task(id) end
in_chunks('ZREM', completed, ids)
delete_all(tasks)

local stale = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', whole(now - 2000), 'LIMIT', 0, limit)) do
  if not redis.call('ZSCORE', scheduled, id) and not redis.call('ZSCORE', retry, id) then stale[#stale + 1] = id end
end
in_chunks('ZREM', due, stale)
return math.max(#ids, #stale)

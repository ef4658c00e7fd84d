-- expire: delete completed tasks whose retention has ended, and due times of tasks that no longer wait.
-- KEYS  completed scheduled retry due
-- ARGV  task_prefix limit [now_ms]
-- RETURNS  number deleted of either, whichever is more
-- include: clock chunks
-- Go's forwarder moves a task of ours without looking at the index of due times. Whoever serves the queue drops the entry when
-- it is due; where only Go serves it, nobody else would.
local completed, scheduled, retry, due = unpack(KEYS)
local task_prefix, limit = ARGV[1], ARGV[2]
local now = clock(ARGV[3])

local ids = redis.call('ZRANGEBYSCORE', completed, '-inf', whole(math.floor(now / 1000)), 'LIMIT', 0, limit)
local keys = {}
for i, id in ipairs(ids) do keys[i] = task_prefix .. id end
in_chunks('ZREM', completed, ids)
delete_all(keys)

local stale = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', whole(now - 2000), 'LIMIT', 0, limit)) do
  if not redis.call('ZSCORE', scheduled, id) and not redis.call('ZSCORE', retry, id) then stale[#stale + 1] = id end
end
in_chunks('ZREM', due, stale)
return math.max(#ids, #stale)

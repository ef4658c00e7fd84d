-- expire: delete completed tasks whose retention has ended, and due times of tasks that no longer wait.
-- KEYS  completed scheduled retry due
-- ARGV  queue_prefix limit cursor
-- RETURNS  {number deleted of either, whichever is more, the next cursor}
-- NEEDS  chunks clock
-- Go moves, archives and deletes a task of ours without looking at the index of due times. Our forwarder deletes the entry when
-- it is due. This script does for a queue that only Go serves, and also walks through the whole index, a portion per call from
-- `cursor` on, because a task may be due in a year.
local now = clock()
local ids = redis.call('ZRANGEBYSCORE', completed, '-inf', whole(math.floor(now / 1000)), 'LIMIT', 0, limit)
local tasks = {}
for i, id in ipairs(ids) do tasks[i] = keys.task(id) end

local stale = {}
local function note_stale(entries)
  for i = 1, #entries, 2 do
    local id, second = entries[i], math.ceil(tonumber(entries[i + 1]) / 1000)
    local waits_until = redis.call('ZSCORE', scheduled, id) or redis.call('ZSCORE', retry, id) or nil
    if tonumber(waits_until) ~= second then stale[#stale + 1] = id end
  end
end
note_stale(redis.call('ZRANGEBYSCORE', due, '-inf', whole(now - 2000), 'WITHSCORES', 'LIMIT', 0, limit))
local next_cursor, walked = unpack(redis.call('ZSCAN', due, cursor, 'COUNT', limit), 1, 2)
note_stale(walked)

in_chunks('ZREM', completed, ids)
delete_all(tasks)
return { math.max(#ids, in_chunks('ZREM', due, stale)), next_cursor }

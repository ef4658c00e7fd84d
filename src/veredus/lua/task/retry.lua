-- retry: take failed tasks out of active and lease, store what happened and make them due again, all or nothing.
-- KEYS  active lease retry scheduled due processed failed
-- ARGV  task_prefix channel count {task_id owner message delay_ms is_failure front crashed traceback}* [now_ms]
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- include: clock checks hold counters wakeup lanes limits due_group
-- A retry is a delayed task like any other: same index, same rule for waking the forwarders.
local active, lease, retry, scheduled, due, processed, failed = unpack(KEYS)
local task_prefix, channel, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now, now_up, nanoseconds = clock(ARGV[4 + count * 8])
expect(active, 'list')
expect(retry, 'zset')
expect(due, 'zset')

local before, first_new = earliest(due, scheduled, retry), nil
local lost, failures = {}, 0
for i = 1, count do
  local id, owner, message, delay, is_failure, front, crashed, traceback = unpack(ARGV, i * 8 - 4, i * 8 + 3)
  local key = task_prefix .. id
  local held = holds(key, lease, id, owner, 'cancel')
  if held then
    -- Asked meanwhile to end otherwise: due at once, and whoever dequeues it ends it as asked.
    local marked = held[2] and held[2] ~= 'retry'
    local at = now_up + (marked and 0 or tonumber(delay))
    redis.call('LREM', active, -1, id)
    redis.call('ZREM', lease, id)
    redis.call('ZADD', retry, whole(math.ceil(at / 1000)), id)
    redis.call('ZADD', due, whole(at), id)
    redis.call('HSET', key, 'msg', message, 'state', 'retry')
    redis.call('HDEL', key, 'held', 'slots', 'front', 'traceback')
    if traceback ~= '' then redis.call('HSET', key, 'traceback', traceback) end
    local group = redis.call('HGET', key, 'group') -- of one that Go's inspector ran alone
    if group then leave_group_until_due(key, group, held[3]) end
    keep_lock(held[3], id, at - now)
    if held[5] then free_slots(string.sub(task_prefix, 1, -3), held[5], id, now, nanoseconds) end
    if marked then
      redis.call('HSET', key, 'cancel_of', redis.sha1hex(message))
    elseif held[2] then
      redis.call('HDEL', key, 'cancel', 'cancel_of')
    end
    if front == '1' then redis.call('HSET', key, 'front', '1') end -- forward brings it to the front of the line
    if crashed == '1' then redis.pcall('HINCRBY', key, 'losses', 1) end -- as recover counts those of a lost worker
    if is_failure == '1' then
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
tally(now, processed, failures, failed, failures)
return lost

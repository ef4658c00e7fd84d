-- retry: take failed tasks out of active and lease, store what happened and make them due again, all or nothing.
-- KEYS  active lease retry scheduled due processed failed
-- ARGV  task_prefix channel count {task_id owner message delay_ms is_failure}* [now_ms]
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- include: clock checks hold counters wakeup
-- A retry is a delayed task like any other: same index, same rule for waking the forwarders.
local active, lease, retry, scheduled, due, processed, failed = unpack(KEYS)
local task_prefix, channel, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now, now_up = clock(ARGV[4 + count * 5])
expect(active, 'list')
expect(retry, 'zset')
expect(due, 'zset')

local before, first_new = earliest(due, scheduled, retry), nil
local lost, failures = {}, 0
for i = 1, count do
  local id, owner, message, delay, is_failure = unpack(ARGV, i * 5 - 1, i * 5 + 3)
  local key = task_prefix .. id
  local held = holds(key, lease, id, owner, 'cancel')
  if held then
    -- Asked meanwhile to end otherwise: due at once, and whoever dequeues it ends it as asked.
    local marked = held[3] and held[3] ~= 'retry'
    local at = now_up + (marked and 0 or tonumber(delay))
    redis.call('LREM', active, -1, id)
    redis.call('ZREM', lease, id)
    redis.call('ZADD', retry, whole(math.ceil(at / 1000)), id)
    redis.call('ZADD', due, whole(at), id)
    redis.call('HSET', key, 'msg', message, 'state', 'retry')
    redis.call('HDEL', key, 'owner', 'until')
    if held[3] and not marked then redis.call('HDEL', key, 'cancel') end
    if is_failure == '1' then failures = failures + 1 end
    if not first_new or at < first_new then first_new = at end
  else
    lost[#lost + 1] = i
  end
end
announce(channel, before, first_new, now)
tally(now, processed, failures, failed, failures)
return lost

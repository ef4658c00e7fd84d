-- retry: take members out of an aggregation set that do not fit its function; they join their group again when due.
-- KEYS  set sets retry scheduled due processed failed
-- ARGV  task_prefix channel count {task_id unique_key message delay_ms}* [now_ms]
-- RETURNS  the number taken out; those that are not in the set any more are left alone
-- include: clock checks hold counters wakeup due_group
local set, sets, retry, scheduled, due, processed, failed = unpack(KEYS)
local task_prefix, channel, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now, now_up = clock(ARGV[4 + count * 4])
expect(sets, 'zset')
expect(retry, 'zset')
expect(due, 'zset')
if not redis.call('ZSCORE', sets, set) then return 0 end
expect(set, 'zset')

local before, first_new, number = earliest(due, scheduled, retry), nil, 0
for i = 1, count do
  local id, lock, message, delay = unpack(ARGV, i * 4, i * 4 + 3)
  local key = task_prefix .. id
  local fields = redis.pcall('HMGET', key, 'unique_key', 'group')
  if not fields.err and redis.call('ZREM', set, id) == 1 then
    local at = now_up + tonumber(delay)
    redis.call('ZADD', retry, whole(math.ceil(at / 1000)), id)
    redis.call('ZADD', due, whole(at), id)
    redis.call('HSET', key, 'msg', message, 'state', 'retry')
    lock = lock ~= '' and lock or fields[1]
    if fields[2] then leave_group_until_due(key, fields[2], lock) end
    keep_lock(lock, id, at - now)
    if not first_new or at < first_new then first_new = at end
    number = number + 1
  end
end
if redis.call('ZCARD', set) == 0 then redis.call('ZREM', sets, set) end
announce(channel, before, first_new, now)
tally(now, processed, number, failed, number)
return number

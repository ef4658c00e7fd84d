-- archive: put members of an aggregation set aside that cannot be read; the others stay in the set.
-- KEYS  set sets archived processed failed
-- ARGV  task_prefix count {task_id unique_key message original}* [now_ms]
-- RETURNS  the number archived; those that are not in the set any more are left alone
-- include: clock checks hold counters tell
-- The archive is kept within its limits by the archive script of tasks, whose every call takes away more than came in.
local set, sets, archived, processed, failed = unpack(KEYS)
local task_prefix, count = ARGV[1], tonumber(ARGV[2])
local now = clock(ARGV[3 + count * 4])
expect(sets, 'zset')
expect(archived, 'zset')
if not redis.call('ZSCORE', sets, set) then return 0 end
expect(set, 'zset')

local number = 0
for i = 1, count do
  local id, lock, message, original = unpack(ARGV, i * 4 - 1, i * 4 + 2)
  local key = task_prefix .. id
  local fields = redis.pcall('HMGET', key, 'unique_key', 'waited')
  if not fields.err and redis.call('ZREM', set, id) == 1 then
    redis.call('ZADD', archived, whole(math.floor(now / 1000)), id)
    redis.call('HSET', key, 'msg', message, 'state', 'archived')
    if original ~= '' then redis.call('HSET', key, 'original', original) end
    redis.call('HDEL', key, 'waited', 'cancel', 'cancel_of')
    release(lock ~= '' and lock or fields[1], id)
    tell(fields[2], 'archived', key)
    number = number + 1
  end
end
if redis.call('ZCARD', set) == 0 then redis.call('ZREM', sets, set) end
tally(now, processed, number, failed, number)
return number

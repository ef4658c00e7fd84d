-- declare: say what the limits of a queue are; the last process to say so is right.
-- KEYS  limits limited
-- ARGV  ROWS limit numbers
-- RETURNS  number of limits that are different now
-- NEEDS  clock checks grow
-- `numbers`: how many at once, how many starts, per how many ms, with blanks between; empty to remove the limit.
-- Tasks that wait for a limit that has changed are checked again at once.
local now = clock()
expect(limited, 'zset')

local changed = 0
for i, limit, numbers in rows() do
  local before = redis.call('HGET', limits, limit) or ''
  if before ~= numbers then
    changed = changed + 1
    if numbers == '' then redis.call('HDEL', limits, limit) else grow('HSET', limits, limit, numbers) end
  end
end
if changed > 0 then
  for _, scope in ipairs(redis.call('ZRANGE', limited, 0, 999)) do redis.call('ZADD', limited, whole(now), scope) end
end
return changed

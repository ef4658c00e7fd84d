-- declare: say what the limits of a queue are; the last one to say so is right.
-- KEYS  limits limited
-- ARGV  count {limit numbers}* [now_ms]
-- RETURNS  number of limits that are different now
-- include: clock checks grow
-- `numbers`: how many at once, how many starts, per how many ms, with blanks between; empty to remove the limit.
-- Whoever waits for a limit that has changed is looked at again at once.
local limits, limited = unpack(KEYS)
local count = tonumber(ARGV[1])
local now = clock(ARGV[2 + count * 2])
expect(limited, 'zset')

local changed = 0
for i = 2, count * 2, 2 do
  local spec, text = ARGV[i], ARGV[i + 1]
  local before = redis.call('HGET', limits, spec) or ''
  if before ~= text then
    changed = changed + 1
    if text == '' then redis.call('HDEL', limits, spec) else grow('HSET', limits, spec, text) end
  end
end
if changed > 0 then
  for _, scope in ipairs(redis.call('ZRANGE', limited, 0, 999)) do redis.call('ZADD', limited, whole(now), scope) end
end
return changed

-- leave: end the membership of sessions in groups.
-- KEYS  partition
-- ARGV  channel count {sid group}* [now_ms]
-- RETURNS  per row 1, 2 if nobody of the group is left in this partition, or 0 if it was no member
-- include: log
local count = tonumber(ARGV[2])

local replies = {}
for i = 1, count do
  local sid, group = ARGV[i * 2 + 1], ARGV[i * 2 + 2]
  local partition = partition_of(sid)
  redis.call('SREM', partition .. 's:' .. sid .. ':g', group)
  replies[i] = redis.call('ZREM', partition .. 'g:' .. group, sid)
  if replies[i] == 1 and redis.call('EXISTS', partition .. 'g:' .. group) == 0 then replies[i] = 2 end
end
return replies

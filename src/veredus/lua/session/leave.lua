-- leave: end the membership of sessions in groups.
-- KEYS  partition
-- ARGV  channel count {sid group}* [now_ms]
-- RETURNS  per row 1, or 0 if it was no member
-- include: log
local count = tonumber(ARGV[2])
moment(ARGV[3 + count * 2])

local replies = {}
for i = 1, count do
  local sid, group = ARGV[i * 2 + 1], ARGV[i * 2 + 2]
  local partition = partition_of(sid)
  redis.call('SREM', partition .. 's:' .. sid .. ':g', group)
  replies[i] = end_membership(partition, group, sid) and 1 or 0
end
return replies

-- show: how sessions stand.
-- KEYS  partition
-- ARGV  channel count {sid}* [now_ms]
-- RETURNS  per row {{field}*, {group}*}, or an empty list for one that is gone
-- include: log
local count = tonumber(ARGV[2])
local now = moment(ARGV[3 + count])

local replies = {}
for i = 1, count do
  local sid = ARGV[i + 2]
  local base = partition_of(sid) .. 's:' .. sid .. ':'
  local m = redis.call('HMGET', base .. 'm', 'u', 'st', 'n', 'c', 'e', 'g', 's', 'f', 'pf', 'cb', 'cf', 'op', 'hb', 'cr',
    'x')
  if not m[5] or (m[15] ~= '0' and tonumber(m[15]) <= now) then
    replies[i] = {}
  else
    replies[i] = { m, redis.call('SMEMBERS', base .. 'g') }
  end
end
return replies

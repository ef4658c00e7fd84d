-- read: what logs have from a seq on, or from their floor if that is higher.
-- KEYS  partition
-- ARGV  channel count {sid from_seq most max_bytes}* [now_ms]
-- RETURNS  per row {epoch, generation, floor, floor_ts, policy_floor, top, node, first, {entry}*}, or an empty list for none
-- include: log excerpt
local count = tonumber(ARGV[2])
local now = moment(ARGV[3 + count * 4])

local replies = {}
for i = 1, count do
  local sid, from, most, max_bytes = unpack(ARGV, i * 4 - 1, i * 4 + 2)
  local base = partition_of(sid) .. 's:' .. sid .. ':'
  local m = redis.call('HMGET', base .. 'm', 'x', 'e', 'g', 'f', 'ft', 'pf', 's', 'n')
  if not m[2] or (m[1] ~= '0' and tonumber(m[1]) <= now) then
    replies[i] = {}
  else
    local floor = tonumber(m[4])
    local first = math.max(tonumber(from), floor + 1)
    local entries = excerpt(base .. 'o', floor, first, most, max_bytes)
    replies[i] = { m[2], m[3], m[4], m[5], m[6], m[7], m[8], first, entries }
  end
end
return replies

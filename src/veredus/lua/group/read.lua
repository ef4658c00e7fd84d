-- read: the members of an aggregation set in the order of their arrival; what is no task any more is taken out.
-- KEYS  set sets
-- ARGV  task_prefix [now_ms]
-- RETURNS  {1 if the set is there or 0, {id, message, ...}, {dropped id, reason, ...}}
-- include: clock checks hold arrival tell
local set, sets = unpack(KEYS)
local task_prefix = ARGV[1]
local now = clock(ARGV[2])
expect(sets, 'zset')
if not redis.call('ZSCORE', sets, set) then return { 0, {}, {} } end

local members = redis.call('ZRANGE', set, 0, -1, 'WITHSCORES')
local rows, bad, ended = {}, {}, {}
for i = 1, #members, 2 do
  local id = members[i]
  local key = task_prefix .. id
  local fields = redis.pcall('HMGET', key, 'msg', 'state', 'group_seq', 'expires_at', 'unique_key', 'waited')
  local reason
  if fields.err then
    reason = 'wrongtype'
  elseif not fields[1] then
    reason = 'dangling'
    ended[#ended + 1] = { id, key }
  elseif fields[2] ~= 'aggregating' then
    reason = 'duplicate' -- it is elsewhere, where its state says
  elseif fields[4] and (tonumber(fields[4]) or math.huge) <= now then
    reason = 'expired'
    ended[#ended + 1] = { id, key, fields[5], fields[6] }
  end
  if reason then
    bad[#bad + 1] = id
    bad[#bad + 1] = reason
  else
    rows[#rows + 1] = { id, members[i + 1], fields[3] or nil, fields[1] }
  end
end
by_arrival(rows)

for i = 1, #bad, 2 do redis.call('ZREM', set, bad[i]) end
for _, row in ipairs(ended) do
  release(row[3], row[1])
  redis.call('DEL', row[2])
  tell(row[4], 'expired', row[2])
end
if #rows == 0 then redis.call('ZREM', sets, set) end
local found = {}
for _, row in ipairs(rows) do
  found[#found + 1] = row[1]
  found[#found + 1] = row[4]
end
return { 1, found, bad }

-- detach: connections are gone; their sessions wait for their clients to come back.
-- KEYS  partition
-- ARGV  channel count {sid generation}* [now_ms]
-- RETURNS  per row 1, or 0 if another connection has the session, or none
-- include: checks log leaving grow
local count = tonumber(ARGV[2])
local now = moment(ARGV[3 + count * 2])
for i = 1, count do expect(partition_of(ARGV[i * 2 + 1]) .. 'x', 'zset') end

local replies = {}
for i = 1, count do
  local sid, generation = ARGV[i * 2 + 1], ARGV[i * 2 + 2]
  local m = redis.call('HMGET', partition_of(sid) .. 's:' .. sid .. ':m', 'g', 'st', 'n', 'ttl')
  if m[1] == generation and m[2] == 'a' then
    may_grow(partition_of(sid))
    leave_node(sid, m[3], tonumber(m[4]), now)
    replies[i] = 1
  else
    replies[i] = 0
  end
end
return replies

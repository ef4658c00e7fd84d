-- join: make sessions members of groups.
-- KEYS  partition
-- ARGV  channel most count {sid group}* [now_ms]
-- RETURNS  per row 1, 0 if there is no such session, -1 if it is in too many groups
-- include: checks log
local most, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local now = moment(ARGV[4 + count * 2])
for i = 1, count do
  local sid, group = ARGV[i * 2 + 2], ARGV[i * 2 + 3]
  local s = look_up(sid, now)
  if s then
    expect(s.base .. 'g', 'set')
    expect(partition_of(sid) .. 'g:' .. group, 'zset')
  end
end

local replies = {}
for i = 1, count do
  local sid, group = ARGV[i * 2 + 2], ARGV[i * 2 + 3]
  local s = look_up(sid, now)
  if not s then
    replies[i] = 0
  elseif redis.call('SCARD', s.base .. 'g') >= most and redis.call('SISMEMBER', s.base .. 'g', group) == 0 then
    replies[i] = -1
  else
    redis.call('SADD', s.base .. 'g', group)
    redis.call('ZADD', partition_of(sid) .. 'g:' .. group, 0, sid)
    replies[i] = 1
  end
end
return replies

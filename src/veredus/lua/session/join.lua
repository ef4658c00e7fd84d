-- join: make sessions members of groups.
-- KEYS  sessions
-- ARGV  most:number ROWS sid group
-- RETURNS  per row 1, 0 if there is no such session, -1 if it is in too many groups
-- NEEDS  checks log
for i, sid, group in rows() do
  local s = look_up(sid)
  if s then
    expect(session_keys.session_groups(s.base), 'set')
    expect(session_keys.group(s.partition, group), 'zset')
  end
end

local replies = {}
for i, sid, group in rows() do
  local s = look_up(sid)
  local joined = s and session_keys.session_groups(s.base)
  if not s then
    replies[i] = 0
  elseif redis.call('SCARD', joined) >= most and redis.call('SISMEMBER', joined, group) == 0 then
    replies[i] = -1
  else
    redis.call('SADD', joined, group)
    redis.call('ZADD', session_keys.group(s.partition, group), 0, sid)
    replies[i] = 1
  end
end
return replies

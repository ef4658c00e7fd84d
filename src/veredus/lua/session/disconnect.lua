-- disconnect: end sessions because somebody has asked for it, and keep the reason for clients that come back to them.
-- KEYS  partition
-- ARGV  channel call kept_ms before reason count {sid}* [now_ms]
-- RETURNS  per row 1 if this call ended it, else 0
-- include: chunks log mail erase grow
-- With `before`, only sessions whose token was issued earlier. The record `e` is `<call> <reason>`: a call that is repeated
-- because its reply was lost counts the same sessions again. It lives as long as the client may try to resume.
local channel, call, kept, before, reason, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local now = moment(ARGV[7 + count])
look_up_all(7, 1, count, now)

local replies = {}
for i = 1, count do
  local sid = ARGV[6 + i]
  local s = look_up(sid, now)
  local base = partition_of(sid) .. 's:' .. sid .. ':'
  replies[i] = 0
  if s then
    local m = redis.call('HMGET', base .. 'm', 'ti', 'ttl')
    if before == '' or tonumber(m[1] or 0) < tonumber(before) then
      may_grow(base)
      erase(sid, reason)
      redis.call('SET', base .. 'e', call .. ' ' .. reason, 'PX', math.max(tonumber(kept), tonumber(m[2])))
      replies[i] = 1
    end
  elseif string.match(redis.call('GET', base .. 'e') or '', '^%w+') == call then
    replies[i] = 1
  end
end
save_all()
tell_nodes(channel)
return replies

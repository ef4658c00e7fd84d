-- close: end sessions with all that belongs to them.
-- KEYS  partition
-- ARGV  channel count {sid reason}* [now_ms]
-- RETURNS  per row 1, or 0 if there is no such session
-- include: chunks log mail erase
local channel, count = ARGV[1], tonumber(ARGV[2])
local now = moment(ARGV[3 + count * 2])
look_up_all(3, 2, count, now)

local replies = {}
for i = 1, count do
  local sid, reason = ARGV[i * 2 + 1], ARGV[i * 2 + 2]
  replies[i] = look_up(sid, now) and 1 or 0
  erase(sid, reason)
end
save_all()
tell_nodes(channel)
return replies

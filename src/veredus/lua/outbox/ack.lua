-- ack: everything up to a seq was handed to the client's application and leaves the log.
-- KEYS  partition
-- ARGV  channel count {sid seq rid_floor}* [now_ms]
-- RETURNS  per row: ok, ahead (beyond the top; nothing was changed) or gone
-- include: chunks log floors
local count = tonumber(ARGV[2])
local now = moment(ARGV[3 + count * 3])
look_up_all(3, 3, count, now)

local replies = {}
for i = 1, count do
  local sid, seq, rid_floor = ARGV[i * 3], tonumber(ARGV[i * 3 + 1]), tonumber(ARGV[i * 3 + 2])
  local s = look_up(sid, now)
  if not s then
    replies[i] = 'gone'
  elseif seq > s.top then
    replies[i] = 'ahead'
  else
    if seq > s.floor then cut(s, seq) end
    if rid_floor > 0 then raise_rid_floor(s, rid_floor) end
    replies[i] = 'ok'
  end
end
save_all()
return replies

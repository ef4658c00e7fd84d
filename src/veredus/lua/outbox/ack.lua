-- ack: everything up to a seq was handed to the client's application and leaves the log.
-- KEYS  partition
-- ARGV  channel count {sid seq rid_floor ts}* [now_ms]
-- RETURNS  per row: ok, ahead (beyond the top), forked (another message has this number; both change nothing) or gone
-- include: chunks log floors
-- `ts` is that of the message that the client was sent under this number, 0 if it is not known: after a failover the log
-- may have another one there, which nobody has seen.
local count = tonumber(ARGV[2])
local now = moment(ARGV[3 + count * 4])
look_up_all(3, 4, count, now)

local replies = {}
for i = 1, count do
  local sid, seq, rid_floor, ts = ARGV[i * 4 - 1], tonumber(ARGV[i * 4]), tonumber(ARGV[i * 4 + 1]), tonumber(ARGV[i * 4 + 2])
  local s = look_up(sid, now)
  if not s then
    replies[i] = 'gone'
  elseif seq > s.top then
    replies[i] = 'ahead'
  elseif seq > s.floor and not cut(s, seq, ts) then
    replies[i] = 'forked'
  else
    if rid_floor > 0 then raise_rid_floor(s, rid_floor) end
    replies[i] = 'ok'
  end
end
save_all()
return replies

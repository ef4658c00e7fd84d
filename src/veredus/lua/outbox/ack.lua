-- ack: everything up to a seq was given to the client's application and leaves the log.
-- KEYS  sessions
-- ARGV  ROWS sid seq:number rid_floor:number ts:number
-- RETURNS  per row: ok, ahead (beyond the top), forked (another message has this number; both change nothing) or gone
-- NEEDS  floors log row_sessions
-- `ts` is that of the message that the client was sent under this number, 0 if it is not known: after a failover the log
-- may have another one there, which the client has not seen.
look_up_rows()

local replies = {}
for i, sid, seq, rid_floor, ts in rows() do
  local s = look_up(sid)
  if not s then
    replies[i] = 'gone'
  elseif seq > s.top then
    replies[i] = 'ahead'
  elseif seq > s.floor and not cut(s, seq, ts) then
    replies[i] = 'forked'
  else
    if rid_floor > 0 then check_records(s.base) end
    replies[i] = 'ok'
  end
end

for i, sid, rid_floor in rows() do
  if replies[i] == 'ok' and rid_floor > 0 then raise_rid_floor(look_up(sid), rid_floor) end
end
save_all()
return replies

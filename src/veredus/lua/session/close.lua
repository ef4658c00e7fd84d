-- close: end sessions and delete everything that belongs to them.
-- KEYS  sessions
-- ARGV  channel ROWS sid reason
-- RETURNS  per row 1, or 0 if there is no such session
-- NEEDS  erasable erase log row_sessions
look_up_rows()
for i, sid in rows() do check_erasable(sid) end

local replies = {}
for i, sid, reason in rows() do
  replies[i] = look_up(sid) and 1 or 0
  erase(sid, reason)
end
save_all()
tell_nodes(channel)
return replies

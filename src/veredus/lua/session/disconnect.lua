-- disconnect: end sessions on request, and keep the reason for clients that try to resume them.
-- KEYS  sessions
-- ARGV  channel call kept_ms:number before reason ROWS sid
-- RETURNS  per row 1 if this call ended it, else 0
-- NEEDS  erasable erase grow log row_sessions
-- With `before`, only sessions whose token was issued earlier. The record is `<call> <reason>`: a call that is repeated
-- because its reply was lost counts the same sessions again. It lives as long as the client may try to resume.
look_up_rows()
for i, sid in rows() do
  check_erasable(sid)
  redis.call('GET', session_keys.ended(base_of(sid)))
end

local replies = {}
for i, sid in rows() do
  local base = base_of(sid)
  local record = session_keys.ended(base)
  replies[i] = 0
  if look_up(sid) then
    local issued, ttl = unpack(redis.call('HMGET', session_keys.meta(base), field.TOKEN_ISSUED, field.TTL))
    if before == '' or tonumber(issued or 0) < tonumber(before) then
      may_grow(base)
      erase(sid, reason)
      redis.call('SET', record, call .. ' ' .. reason, 'PX', math.max(kept_ms, tonumber(ttl)))
      replies[i] = 1
    end
  elseif string.match(redis.call('GET', record) or '', '^%w+') == call then
    replies[i] = 1
  end
end
save_all()
tell_nodes(channel)
return replies

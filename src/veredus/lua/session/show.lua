-- show: the fields and the groups of sessions.
-- KEYS  sessions
-- ARGV  ROWS sid
-- RETURNS  per row {user, state, node, connection, epoch, generation, top, floor, policy_floor, bytes, bytes_floor, open_requests, held, created, ends, {group}*}, or an empty list for one that is gone
-- NEEDS  log
local replies = {}
for i, sid in rows() do
  local base = base_of(sid)
  local user, state, node, connection, epoch, generation, top, floor, policy_floor, bytes, bytes_floor, open, held, created,
    ends = unpack(redis.call('HMGET', session_keys.meta(base), field.USER, field.STATE, field.NODE, field.CONNECTION,
      field.EPOCH, field.GENERATION, field.TOP, field.FLOOR, field.POLICY_FLOOR, field.BYTES, field.BYTES_FLOOR,
      field.OPEN_REQUESTS, field.HELD, field.CREATED, field.ENDS))
  if not epoch or (ends ~= '0' and tonumber(ends) <= now) then
    replies[i] = {}
  else
    replies[i] = { user, state, node, connection, epoch, generation, top, floor, policy_floor, bytes, bytes_floor, open,
      held, created, ends, redis.call('SMEMBERS', session_keys.session_groups(base)) }
  end
end
return replies

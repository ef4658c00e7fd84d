-- read: what logs have from a seq on, or from their floor if that is higher.
-- KEYS  sessions
-- ARGV  ROWS sid from_seq:number most:number max_bytes:number
-- RETURNS  per row {epoch, generation, floor, floor_ts, policy_floor, top, node, first, {entry}*}, or an empty list for none
-- NEEDS  excerpt log
local replies = {}
for i, sid, from_seq, most, max_bytes in rows() do
  local base = base_of(sid)
  local ends, epoch, generation, floor, floor_ts, policy_floor, top, node = unpack(redis.call('HMGET',
    session_keys.meta(base), field.ENDS, field.EPOCH, field.GENERATION, field.FLOOR, field.FLOOR_TS, field.POLICY_FLOOR,
    field.TOP, field.NODE))
  if not epoch or (ends ~= '0' and tonumber(ends) <= now) then
    replies[i] = {}
  else
    local first = math.max(from_seq, tonumber(floor) + 1)
    local entries = excerpt(session_keys.outbox(base), tonumber(floor), first, most, max_bytes)
    replies[i] = { epoch, generation, floor, floor_ts, policy_floor, top, node, first, entries }
  end
end
return replies

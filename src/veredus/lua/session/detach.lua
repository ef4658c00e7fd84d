-- detach: connections are gone; their sessions wait for their clients to come back.
-- KEYS  sessions
-- ARGV  ROWS sid generation
-- RETURNS  per row 1, or 0 if another connection has the session, or none
-- NEEDS  checks grow leaving log
for i, sid in rows() do expect(session_keys.expiries(partition_of(sid)), 'zset') end

local replies = {}
for i, sid, generation in rows() do
  local base = base_of(sid)
  local current, state, node, ttl = unpack(redis.call('HMGET', session_keys.meta(base), field.GENERATION, field.STATE,
    field.NODE, field.TTL))
  if current == generation and state == field.ATTACHED then
    may_grow(base)
    leave_node(sid, node, tonumber(ttl))
    replies[i] = 1
  else
    replies[i] = 0
  end
end
return replies

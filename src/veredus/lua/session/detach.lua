-- detach: connections are gone; their sessions wait for their clients to come back.
-- KEYS  sessions
-- ARGV  ROWS sid generation
-- RETURNS  per row 1, or 0 if another connection has the session, or none
-- NEEDS  checks grow leaving log
local replies, leaving = {}, {}
for i, sid, generation in rows() do
  local partition = partition_of(sid)
  local current, state, node, ttl = unpack(redis.call('HMGET', session_keys.meta(base_of(sid)), field.GENERATION,
    field.STATE, field.NODE, field.TTL))
  replies[i] = 0
  if current == generation and state == field.ATTACHED and not leaving[sid] then
    expect(session_keys.expiries(partition), 'zset')
    expect(session_keys.attached(partition, node), 'set')
    leaving[sid] = { node = node, ttl_ms = ttl + 0 } -- stops here if it is no number
    replies[i] = 1
  end
end

for sid, left in pairs(leaving) do
  may_grow(base_of(sid))
  leave_node(sid, left.node, left.ttl_ms)
end
return replies

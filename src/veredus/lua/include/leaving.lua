-- NEEDS  log

-- leave_node: a session has lost its connection and waits for its client until its TTL is over.
local function leave_node(sid, node, ttl_ms)
  local partition = partition_of(sid)
  local ends = now + ttl_ms
  redis.call('HSET', session_keys.meta(base_of(sid)), field.NODE, '', field.CONNECTION, '', field.STATE, field.DETACHED,
    field.ENDS, ends)
  redis.call('ZADD', session_keys.expiries(partition), ends, sid)
  redis.call('SREM', session_keys.attached(partition, node), sid)
end

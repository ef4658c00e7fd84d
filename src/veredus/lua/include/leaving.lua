-- leave_node: a session has no connection any more; it waits for its client until its time is over.
local function leave_node(sid, node, ttl, now)
  local partition = partition_of(sid)
  local ends = now + ttl
  redis.call('HSET', partition .. 's:' .. sid .. ':m', 'n', '', 'c', '', 'st', 'd', 'x', ends)
  redis.call('ZADD', partition .. 'x', ends, sid)
  redis.call('SREM', partition .. 'n:' .. node, sid)
end

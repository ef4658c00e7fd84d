-- leave: end the membership of sessions in groups.
-- KEYS  sessions
-- ARGV  ROWS sid group
-- RETURNS  per row 1, or 0 if it was no member
-- NEEDS  checks log
for i, sid, group in rows() do
  local partition = partition_of(sid)
  expect(session_keys.session_groups(base_of(sid)), 'set')
  expect(session_keys.group(partition, group), 'zset')
  expect(session_keys.emptied(partition), 'zset')
end

local replies = {}
for i, sid, group in rows() do
  redis.call('SREM', session_keys.session_groups(base_of(sid)), group)
  replies[i] = end_membership(partition_of(sid), group, sid) and 1 or 0
end
return replies

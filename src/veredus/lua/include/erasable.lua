-- NEEDS  checks log

-- check_erasable: stop before the first write when a key that `erase` changes has a wrong type.
local function check_erasable(sid)
  local partition, base = partition_of(sid), base_of(sid)
  for _, index in ipairs({ session_keys.sessions(partition), session_keys.expiries(partition),
    session_keys.deadlines(partition), session_keys.early_binds(partition), session_keys.emptied(partition) }) do
    expect(index, 'zset')
  end
  expect(session_keys.requests(base), 'hash')
  for _, group in ipairs(redis.call('SMEMBERS', session_keys.session_groups(base))) do
    expect(session_keys.group(partition, group), 'zset')
  end
  local user, node = unpack(redis.call('HMGET', session_keys.meta(base), field.USER, field.NODE))
  if node and node ~= '' then expect(session_keys.attached(partition, node), 'set') end
  if not user or user == '' then return end
  expect(session_keys.user(partition, user), 'zset')
  if redis.call('EXISTS', session_keys.waiting(base)) == 0 then return end
  expect(session_keys.mailbox(partition, user), 'list')
  for _, other in ipairs(redis.call('ZRANGE', session_keys.user(partition, user), 0, -1)) do
    check_list(look_up(other))
    expect(session_keys.waiting(session_keys.session_prefix(partition, other)), 'hash')
  end
end

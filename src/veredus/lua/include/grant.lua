-- NEEDS  checks log

-- named_before: the groups that the session's token has named so far.
local function named_before(base)
  local before = redis.call('HGET', session_keys.meta(base), field.TOKEN_GROUPS)
  return before and before ~= '' and cjson.decode(before) or {}
end

-- check_grant: stop before the first write when a key that `grant` changes has a wrong type.
local function check_grant(partition, base)
  local before = named_before(base)
  if #before == 0 and groups_count == 0 then return end
  expect(session_keys.session_groups(base), 'set')
  if #before > 0 then expect(session_keys.emptied(partition), 'zset') end
  for i, group in groups() do expect(session_keys.group(partition, group), 'zset') end
  for _, group in ipairs(before) do expect(session_keys.group(partition, group), 'zset') end
end

-- grant: make a session a member of the groups that its token names (the script's rows `groups`), and of no group that
-- only an earlier token named. Groups that its client or the app has joined stay.
local function grant(base, sid)
  local meta, session_groups = session_keys.meta(base), session_keys.session_groups(base)
  local before = named_before(base)
  if #before == 0 and groups_count == 0 then return end
  local partition, granted, is_named = partition_of(sid), {}, {}
  for i, group in groups() do
    granted[i], is_named[group] = group, true
    redis.call('ZADD', session_keys.group(partition, group), 0, sid)
    redis.call('SADD', session_groups, group)
  end
  for _, group in ipairs(before) do
    if not is_named[group] then
      end_membership(partition, group, sid)
      redis.call('SREM', session_groups, group)
    end
  end
  redis.call('HSET', meta, field.TOKEN_GROUPS, #granted > 0 and cjson.encode(granted) or '')
end

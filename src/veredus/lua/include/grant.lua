-- NEEDS  log

-- grant: make a session a member of the groups that its token names (the script's rows `groups`), and of no group that
-- only an earlier token named. Groups that its client or the app has joined stay.
local function grant(base, sid)
  local meta, session_groups = session_keys.meta(base), session_keys.session_groups(base)
  local before = redis.call('HGET', meta, field.TOKEN_GROUPS)
  before = before and before ~= '' and cjson.decode(before) or {}
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

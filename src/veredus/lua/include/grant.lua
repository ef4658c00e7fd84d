-- grant: make a session a member of the groups that its token names, and of none that only an earlier token named (`tg` has
-- those). Groups that its client or the app has joined stay.
local function grant(base, sid, groups)
  local before = redis.call('HGET', base .. 'm', 'tg')
  before = before and before ~= '' and cjson.decode(before) or {}
  if #before == 0 and #groups == 0 then return end
  local partition, named = partition_of(sid), {}
  for _, group in ipairs(groups) do
    named[group] = true
    redis.call('ZADD', partition .. 'g:' .. group, 0, sid)
    redis.call('SADD', base .. 'g', group)
  end
  for _, group in ipairs(before) do
    if not named[group] then
      end_membership(partition, group, sid)
      redis.call('SREM', base .. 'g', group)
    end
  end
  redis.call('HSET', base .. 'm', 'tg', #groups > 0 and cjson.encode(groups) or '')
end

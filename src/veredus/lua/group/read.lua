-- read: the members of an aggregation set in the order of their arrival; what is no task any more is taken out.
-- KEYS  set sets
-- ARGV  queue_prefix
-- RETURNS  {1 if the set is there or 0, {id, message, ...}, {dropped id, reason, ...}}
-- NEEDS  clock checks fields ownership arrival notify_waiters
local now = clock()
expect(sets, 'zset')
if not redis.call('ZSCORE', sets, set) then return { 0, {}, {} } end

local members = redis.call('ZRANGE', set, 0, -1, 'WITHSCORES')
local found, bad, ended = {}, {}, {}
for i = 1, #members, 2 do
  local id, score = members[i], members[i + 1]
  local key = keys.task(id)
  local task = read_task(key, 'msg', 'state', 'group_seq', 'expires_at', 'unique_key', 'waited')
  local reason
  if not task then
    reason = 'wrongtype'
  elseif not task.msg then
    reason = 'dangling'
    ended[#ended + 1] = { id = id, key = key }
  elseif task.state ~= 'aggregating' then
    reason = 'duplicate' -- it is elsewhere, where its state says
  elseif task.expires_at and (tonumber(task.expires_at) or math.huge) <= now then
    reason = 'expired'
    ended[#ended + 1] = { id = id, key = key, unique_key = task.unique_key, waited = task.waited }
  end
  if reason then
    bad[#bad + 1] = id
    bad[#bad + 1] = reason
  else
    found[#found + 1] = { id = id, score = score, seq = task.group_seq, message = task.msg }
  end
end
by_arrival(found)

for i = 1, #bad, 2 do redis.call('ZREM', set, bad[i]) end
for _, task in ipairs(ended) do
  release(task.unique_key, task.id)
  redis.call('DEL', task.key)
  notify_waiters(task.waited, 'expired', task.key)
end
if #found == 0 then redis.call('ZREM', sets, set) end
local ids_and_messages = {}
for _, task in ipairs(found) do
  ids_and_messages[#ids_and_messages + 1] = task.id
  ids_and_messages[#ids_and_messages + 1] = task.message
end
return { 1, ids_and_messages, bad }

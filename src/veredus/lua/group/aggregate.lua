-- aggregate: put the tasks made of an aggregation set into the queue and delete the set with its members, all or nothing.
-- KEYS  set sets pending scheduled retry due groups
-- ARGV  queue_prefix channel ROWS(members) task_id unique_key
--   ROWS(tasks) task_id message unique_key unique_ttl expires due_at group order_key order_hold:flag limit_key
-- RETURNS  {1 done, 0 the set is not there any more or has lost members, -1 a task was refused; {one code per task as enqueue has}}
-- NEEDS  clock checks chunks fields ownership wakeup arrival regroup notify_waiters lanes new_task waking
-- Only a set that is in `sets` and still has every member is aggregated: one that was reclaimed since lives on in its group,
-- and making a task of it as well would run its members twice.
local now, now_up, nanoseconds, beyond = clock()
expect(sets, 'zset')
expect(groups, 'set')
if not redis.call('ZSCORE', sets, set) then return { 0, {} } end

local is_member = {}
for i, task_id in members() do
  if not redis.call('ZSCORE', set, task_id) then return { 0, {} } end
  is_member[task_id] = true
end

-- Look at everything before the first write. A member's own id and lock are free: it goes in the same step.
local function is_taken(id) return redis.call('EXISTS', keys.task(id)) == 1 and not is_member[id] end
local function is_locked(lock)
  local holder = redis.pcall('GET', lock)
  return holder and not (type(holder) == 'string' and is_member[holder])
end
expect(pending, 'list')
expect(scheduled, 'zset')
expect(due, 'zset')
local codes, is_refused, ids, locks = {}, false, {}, {}
for i, task_id, unique_key, unique_ttl, due_at, group in tasks() do
  expect_ttl(unique_key, unique_ttl)
  if group ~= '' and due_at == '' then expect(keys.group(group), 'zset') end
  codes[i] = 1
  if ids[task_id] or is_taken(task_id) then
    codes[i] = 0
  elseif unique_key ~= '' and (locks[unique_key] or is_locked(unique_key)) then
    codes[i] = -1
  end
  ids[task_id], locks[unique_key] = true, true
  is_refused = is_refused or codes[i] ~= 1
end
if is_refused then return { -1, codes } end

local gone, gone_keys, waited_for = {}, {}, {}
for i, task_id, unique_key in members() do
  local key = keys.task(task_id)
  local member = read_task(key, 'unique_key', 'waited') or {}
  release(unique_key, task_id)
  if member.unique_key ~= unique_key then release(member.unique_key, task_id) end
  if member.waited then waited_for[#waited_for + 1] = { waited = member.waited, key = key } end
  gone[i], gone_keys[i] = task_id, key
end
in_chunks('ZREM', set, gone)
delete_all(gone_keys)
local group_name = group_of(queue_prefix, set)
if redis.call('ZCARD', set) > 0 and group_name then -- nobody has seen these: they stay in the group
  regroup(queue_prefix, set, groups, group_name, 1e9)
end
redis.call('DEL', set)
redis.call('ZREM', sets, set)

local before, first_new = earliest(due, scheduled, retry), nil
for i, task_id, message, unique_key, unique_ttl, expires, due_at, group, order_key, order_hold, limit_key in tasks() do
  local key, at = keys.task(task_id), due_at ~= '' and instant(due_at, now, beyond) or nil
  local is_grouped = group ~= '' and not at
  if unique_key ~= '' then
    redis.call('SET', unique_key, task_id, 'EX', lock_seconds(unique_ttl, at and at - now or 0))
  end
  store_task(key, message, at and 'scheduled' or is_grouped and 'aggregating' or 'pending', unique_key, expires, now_up)
  if group ~= '' and at then redis.call('HSET', key, 'due_group', group) end
  if is_grouped then redis.call('HSET', key, 'group', group, 'group_seq', arrival(nanoseconds, i)) end
  bind_task(key, order_key, order_hold, limit_key)
  if at then
    plan_task(scheduled, due, task_id, at)
    if not first_new or at < first_new then first_new = at end
  elseif is_grouped then
    redis.call('ZADD', keys.group(group), whole(math.floor(now / 1000)), task_id)
    redis.call('SADD', groups, group)
  elseif order_key ~= '' and not join_lane(queue_prefix, order_key, task_id, now) then
    park(queue_prefix, task_id, nanoseconds)
  else
    redis.call('HSET', key, 'pending_since', nanoseconds)
    redis.call('LPUSH', pending, task_id)
    wake(queue_prefix)
  end
end
announce(channel, before, first_new, now)
for _, member in ipairs(waited_for) do notify_waiters(member.waited, 'done', member.key) end
return { 1, codes }

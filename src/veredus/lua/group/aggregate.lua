-- aggregate: put the tasks made of an aggregation set into the queue and delete the set with its members, all or nothing.
-- KEYS  set sets pending scheduled retry due groups
-- ARGV  task_prefix group_prefix channel members count {member_id lock}* {task_id message unique_key unique_ttl expires due_at group order_key order_hold limit_key}* [now_ms]
-- RETURNS  {1 done, 0 the set is not there any more or has lost members, -1 a task was refused; {one code per task as enqueue has}}
-- include: clock checks chunks hold wakeup arrival regroup tell lanes
-- Only a set that stands in `sets` and still has every member is aggregated: one that was reclaimed meanwhile lives on in
-- its group, and making a task of it as well would run its members twice.
local set, sets, pending, scheduled, retry, due, groups = unpack(KEYS)
local task_prefix, group_prefix, channel = unpack(ARGV, 1, 3)
local members, count = tonumber(ARGV[4]), tonumber(ARGV[5])
local base = 5 + members * 2
local now, now_up, nanoseconds = clock(ARGV[base + count * 10 + 1])
local function task(i) return unpack(ARGV, base + i * 10 - 9, base + i * 10) end
expect(sets, 'zset')
expect(groups, 'set')
if not redis.call('ZSCORE', sets, set) then return { 0, {} } end

local is_member = {}
for i = 1, members do
  local id = ARGV[4 + i * 2]
  if not redis.call('ZSCORE', set, id) then return { 0, {} } end
  is_member[id] = true
end

-- Look at everything before the first write. A member's own id and lock are free: it goes in the same step.
local function taken(id) return redis.call('EXISTS', task_prefix .. id) == 1 and not is_member[id] end
local function locked(lock)
  local holder = redis.pcall('GET', lock)
  return holder and not (type(holder) == 'string' and is_member[holder])
end
expect(pending, 'list')
expect(scheduled, 'zset')
expect(due, 'zset')
local codes, refused, ids, locks = {}, false, {}, {}
for i = 1, count do
  local id, _, lock, ttl, _, due_at, group = task(i)
  expect_ttl(lock, ttl)
  if group ~= '' and due_at == '' then expect(group_prefix .. group, 'zset') end
  codes[i] = 1
  if ids[id] or taken(id) then
    codes[i] = 0
  elseif lock ~= '' and (locks[lock] or locked(lock)) then
    codes[i] = -1
  end
  ids[id], locks[lock] = true, true
  refused = refused or codes[i] ~= 1
end
if refused then return { -1, codes } end

local gone, waits = {}, {}
for i = 1, members do
  local id, lock = ARGV[4 + i * 2], ARGV[5 + i * 2]
  local key = task_prefix .. id
  local fields = redis.pcall('HMGET', key, 'unique_key', 'waited')
  release(lock, id)
  if not fields.err and fields[1] and fields[1] ~= lock then release(fields[1], id) end
  if not fields.err and fields[2] then waits[#waits + 1] = { fields[2], key } end
  gone[i] = id
end
in_chunks('ZREM', set, gone)
for i = 1, members do gone[i] = task_prefix .. gone[i] end
delete_all(gone)
local group_name = group_of(set, group_prefix)
if redis.call('ZCARD', set) > 0 and group_name then -- nobody has seen these: they stay in the group
  regroup(set, group_prefix, groups, group_name, 1e9)
end
redis.call('DEL', set)
redis.call('ZREM', sets, set)

local before, first_new = earliest(due, scheduled, retry), nil
for i = 1, count do
  local id, message, lock, ttl, expires, due_at, group, order_key, order_hold, limit_key = task(i)
  local key = task_prefix .. id
  local at = due_at ~= '' and instant(due_at, now_up) or nil
  redis.call('HSET', key, 'msg', message, 'state', at and 'scheduled' or group ~= '' and 'aggregating' or 'pending')
  if lock ~= '' then
    local seconds = tonumber(ttl) + (at and math.max(0, math.floor((at - now) / 1000)) or 0)
    redis.call('SET', lock, id, 'EX', whole(seconds))
    redis.call('HSET', key, 'unique_key', lock)
  end
  if expires ~= '' then redis.call('HSET', key, 'expires_at', whole(instant(expires, now_up))) end
  if group ~= '' and at then redis.call('HSET', key, 'due_group', group) end
  if group ~= '' and not at then redis.call('HSET', key, 'group', group, 'group_seq', arrival(nanoseconds, i)) end
  if order_key ~= '' then redis.call('HSET', key, 'order_key', order_key) end
  if order_key ~= '' and order_hold == '1' then redis.call('HSET', key, 'order_hold', '1') end
  if limit_key ~= '' then redis.call('HSET', key, 'limit_key', limit_key) end
  if at then
    redis.call('ZADD', scheduled, whole(math.ceil(at / 1000)), id)
    redis.call('ZADD', due, whole(at), id)
    if not first_new or at < first_new then first_new = at end
  elseif group ~= '' then
    redis.call('ZADD', group_prefix .. group, whole(math.floor(now / 1000)), id)
    redis.call('SADD', groups, group)
  elseif order_key ~= '' and not join_lane(string.sub(task_prefix, 1, -3), order_key, id, now) then
    park(string.sub(task_prefix, 1, -3), id, nanoseconds)
  else
    redis.call('HSET', key, 'pending_since', nanoseconds)
    redis.call('LPUSH', pending, id)
  end
end
announce(channel, before, first_new, now)
for _, row in ipairs(waits) do tell(row[1], 'done', row[2]) end
return { 1, codes }

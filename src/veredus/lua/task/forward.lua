-- forward: bring what is due from scheduled and retry to pending (or to its group), in the order of the due times.
-- KEYS  scheduled retry due pending groups
-- ARGV  task_prefix group_prefix limit [now_ms]
-- RETURNS  {number forwarded, next due instant in ms or -1, now_ms, {dropped id, reason, ...}, microseconds beyond now_ms}
-- include: clock checks chunks hold wakeup arrival lanes limits
-- The shared sets are the truth: an index entry counts only if its id is still there with the same second, because a Go
-- worker that moved the task knows nothing of our index.
local scheduled, retry, due, pending, groups = unpack(KEYS)
local task_prefix, group_prefix, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now, _, nanoseconds, beyond = clock(ARGV[4])
local queue_prefix = string.sub(task_prefix, 1, -3)
expect(pending, 'list')
expect(groups, 'set')

local function score(set, id)
  local found = redis.pcall('ZSCORE', set, id)
  return type(found) == 'string' and tonumber(found) or nil
end

-- Collect: our index to the millisecond, then whatever else the shared sets say is due (Go's, or ours without index).
-- Only so much of the index is read; what is due after its last entry waits for the next call, lest it overtake the rest.
local found, listed, stale, horizon = {}, {}, {}, now
local exact = redis.call('ZRANGEBYSCORE', due, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, limit)
for i = 1, #exact, 2 do
  local id, at = exact[i], tonumber(exact[i + 1])
  local second = math.ceil(at / 1000)
  local set = (score(scheduled, id) == second and scheduled) or (score(retry, id) == second and retry)
  if set then
    found[#found + 1] = { id = id, at = at, set = set }
    listed[id] = true
  else
    stale[#stale + 1] = id
  end
end
if #exact >= 2 * limit then horizon = tonumber(exact[#exact]) end
for _, set in ipairs({ scheduled, retry }) do
  local plain = redis.pcall('ZRANGEBYSCORE', set, '-inf', whole(math.floor(now / 1000)), 'WITHSCORES', 'LIMIT', 0, limit)
  if not plain.err then
    for i = 1, #plain, 2 do
      local id, second = plain[i], tonumber(plain[i + 1])
      if not listed[id] then
        found[#found + 1] = { id = id, at = second * 1000, set = set }
        listed[id] = true
      end
    end
  end
end
table.sort(found, function(a, b)
  if a.at ~= b.at then return a.at < b.at end
  return a.id < b.id
end)
for i = #found, 1, -1 do
  if i <= limit and found[i].at <= horizon then break end
  found[i] = nil
end

-- Look at every task before the first write.
local dropped = {}
for _, task in ipairs(found) do
  local fields = redis.pcall('HMGET', task_prefix .. task.id, 'msg', 'group', 'unique_key', 'front', 'order_key', 'due_group')
  if fields.err then
    task.reason = 'wrongtype'
  elseif not fields[1] then
    task.reason = 'dangling'
  else
    task.group, task.lock, task.front, task.order_key = fields[6] or fields[2], fields[3], fields[4], fields[5]
    -- A group whose key is damaged cannot take it in: it runs on its own then, and holds up nobody else.
    local is_grouped = task.group and task.group ~= ''
    if is_grouped and type(redis.pcall('ZCARD', group_prefix .. task.group)) ~= 'number' then task.group = nil end
  end
end

in_chunks('ZREM', due, stale)
local ids, front, moved = {}, {}, 0
for _, task in ipairs(found) do
  redis.call('ZREM', task.set, task.id)
  redis.call('ZREM', due, task.id)
  local key = task_prefix .. task.id
  if task.reason then
    dropped[#dropped + 1] = task.id
    dropped[#dropped + 1] = task.reason
    if task.reason == 'dangling' then redis.call('DEL', key) end
  elseif task.group and task.group ~= '' then
    redis.call('ZADD', group_prefix .. task.group, whole(math.floor(now / 1000)), task.id)
    redis.call('SADD', groups, task.group)
    moved = moved + 1
    redis.call('HSET', key, 'state', 'aggregating', 'group', task.group, 'group_seq', arrival(nanoseconds, moved))
    redis.call('HDEL', key, 'due_group')
  elseif task.order_key and not join_lane(queue_prefix, task.order_key, task.id, now) then
    park(queue_prefix, task.id, nanoseconds) -- it has taken its place, and waits for its turn
    redis.call('HDEL', key, 'front')
  else
    redis.call('HSET', key, 'state', 'pending', 'pending_since', nanoseconds)
    if task.front then
      redis.call('HDEL', key, 'front')
      table.insert(front, 1, task.id) -- the first that was due is the next to run
    else
      ids[#ids + 1] = task.id
    end
    moved = moved + 1
  end
  if not task.reason then keep_lock(task.lock, task.id, 0) end
end
in_chunks('LPUSH', pending, ids)
in_chunks('RPUSH', pending, front)

-- Whoever waits for a limit that has room again.
local limited = queue_prefix .. 'limited'
for _, scope in ipairs(redis.call('ZRANGEBYSCORE', limited, '-inf', whole(now), 'LIMIT', 0, 100)) do
  moved = moved + call_up(queue_prefix, scope, now, nanoseconds)
end
local next_due, next_room = earliest(due, scheduled, retry), redis.call('ZRANGE', limited, 0, 0, 'WITHSCORES')[2]
if next_room then
  -- Nothing is planned further ahead than a minute: what is, was planned before the clock was set back.
  local soon = '(' .. whole(now + 60000)
  for _, scope in ipairs(redis.call('ZRANGEBYSCORE', limited, soon, '+inf', 'LIMIT', 0, 100)) do
    moved = moved + call_up(queue_prefix, scope, now, nanoseconds)
  end
  next_room = redis.call('ZRANGE', limited, 0, 0, 'WITHSCORES')[2]
end
if next_room then next_due = math.min(next_due or math.huge, tonumber(next_room)) end
return { moved, next_due or -1, now, dropped, beyond }

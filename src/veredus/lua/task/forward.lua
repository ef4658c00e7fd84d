-- forward: bring what is due from scheduled and retry to pending (or to its group), in the order of the due times.
-- KEYS  scheduled retry due pending groups
-- ARGV  queue_prefix limit:number pause_ms:number forwarder
-- RETURNS  {number forwarded, next due instant in ms or -1, now_ms, {dropped id, reason, ...}, microseconds beyond now_ms}
-- NEEDS  clock checks chunks fields sets wakeup
-- The shared sets are the truth: an index entry counts only if its id is still there with the same second, because a Go
-- worker that moved the task knows nothing of our index.
-- One call moves no more than `limit` tasks. If more are due, no forwarder moves any for `pause_ms`, three times as long while workers have
-- enough to do: between two portions everybody else gets a turn, however many forwarders there are. 0: no pause.
-- `forwarder` names the caller: the one that has moved the last portion need not wait until the server has noticed the end of the pause.
-- Includes inside blocks are for what few tasks have: order keys, limits, locks, groups. At the top they would make a call for
-- one task a fifth dearer, in instructions of the server.
local ENOUGH = 20 -- portions that are pending
local ELSEWHERE_MS = 50 -- when to look again while another forwarder moves portions; it might die
local now, _, nanoseconds, beyond = clock()
local mover = pause_ms > 0 and redis.pcall('GET', keys.forwarding())
if mover then
  local left = mover == forwarder and redis.call('PTTL', keys.forwarding()) or ELSEWHERE_MS
  if left > 1 then return { 0, now + left, now, {}, beyond } end
end
expect(pending, 'list')
expect(groups, 'set')

-- scores_in: the scores of these ids, as far as they are in the set.
local function scores_in(set, ids)
  local scores = {}
  for first = 1, #ids, 1000 do
    local last = math.min(first + 999, #ids)
    local found = redis.pcall('ZMSCORE', set, unpack(ids, first, last))
    if found.err then return scores end
    for i, score in ipairs(found) do scores[ids[first + i - 1]] = tonumber(score or nil) end
  end
  return scores
end

-- Collect: our index to the millisecond, then whatever else the shared sets say is due (Go's, or ours without index).
-- Only so much of the index is read; what is due after its last entry waits for the next call, lest it overtake the rest.
local found, listed, stale, horizon = {}, {}, {}, now
local exact = redis.call('ZRANGEBYSCORE', due, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, limit)
local indexed = {}
for i = 1, #exact, 2 do indexed[#indexed + 1] = exact[i] end
local scheduled_at, retried_at = scores_in(scheduled, indexed), scores_in(retry, indexed)
for i = 1, #exact, 2 do
  local id, at = exact[i], tonumber(exact[i + 1])
  local second = math.ceil(at / 1000)
  local set = (scheduled_at[id] == second and scheduled) or (retried_at[id] == second and retry)
  if set then
    found[#found + 1] = { id = id, at = at, set = set }
    listed[id] = true
  else
    stale[#stale + 1] = id
  end
end
if #exact >= 2 * limit then horizon = tonumber(exact[#exact]) end
local is_sorted = true
for _, set in ipairs({ scheduled, retry }) do
  local last = whole(math.floor(horizon / 1000))
  local plain = redis.pcall('ZRANGEBYSCORE', set, '-inf', last, 'WITHSCORES', 'LIMIT', 0, limit)
  if not plain.err then
    for i = 1, #plain, 2 do
      local id, second = plain[i], tonumber(plain[i + 1])
      if not listed[id] then
        found[#found + 1] = { id = id, at = second * 1000, set = set }
        listed[id], is_sorted = true, false
      end
    end
  end
end
if not is_sorted then -- the index alone has them in this order
  table.sort(found, function(a, b)
    if a.at ~= b.at then return a.at < b.at end
    return a.id < b.id
  end)
end
for i = #found, 1, -1 do
  if i <= limit and found[i].at <= horizon then break end
  found[i] = nil
end

-- Look at every task before the first write.
local dropped = {}
for _, task in ipairs(found) do
  local fields = read_task(keys.task(task.id), 'msg', 'group', 'unique_key', 'front', 'order_key', 'due_group')
  if not fields then
    task.reason = 'wrongtype'
  elseif not fields.msg then
    task.reason = 'dangling'
  else
    task.group, task.unique_key = fields.due_group or fields.group, fields.unique_key
    task.front, task.order_key = fields.front, fields.order_key
    -- A group whose key is damaged cannot take it in: the task then runs on its own and delays no other.
    local is_grouped = task.group and task.group ~= ''
    if is_grouped and type(redis.pcall('ZCARD', keys.group(task.group))) ~= 'number' then task.group = nil end
  end
end

-- has_turn: put a task at the end of its lane unless it is there. It is parked if others are before it.
local function has_turn(task, key)
  -- include: lanes
  if join_lane(queue_prefix, task.order_key, task.id, now) then return true end
  park(queue_prefix, task.id, nanoseconds)
  redis.call('HDEL', key, 'front')
  return false
end

-- keep_its_lock: what is pending has its unique lock for a minute at least.
local function keep_its_lock(task)
  -- include: ownership
  keep_lock(task.unique_key, task.id, 0)
end

-- call_up_all: let tasks that wait for these limits go on, as many as there is room for. Returns their number.
local function call_up_all(scopes)
  if #scopes == 0 then return 0 end
  -- include: limits
  local called = 0
  for _, scope in ipairs(scopes) do called = called + call_up(queue_prefix, scope, now, nanoseconds) end
  return called
end

in_chunks('ZREM', due, stale)
local leaving, with_index = { [scheduled] = {}, [retry] = {} }, {}
for i, task in ipairs(found) do
  local list = leaving[task.set]
  list[#list + 1], with_index[i] = task.id, task.id
end
for set, list in pairs(leaving) do in_chunks('ZREM', set, list) end
in_chunks('ZREM', due, with_index)
local ids, front, moved = {}, {}, 0
for _, task in ipairs(found) do
  local key = keys.task(task.id)
  if task.reason then
    dropped[#dropped + 1] = task.id
    dropped[#dropped + 1] = task.reason
    if task.reason == 'dangling' then redis.call('DEL', key) end
  elseif task.group and task.group ~= '' then
    -- include: arrival
    redis.call('ZADD', keys.group(task.group), whole(math.floor(now / 1000)), task.id)
    redis.call('SADD', groups, task.group)
    moved = moved + 1
    redis.call('HSET', key, 'state', 'aggregating', 'group', task.group, 'group_seq', arrival(nanoseconds, moved))
    redis.call('HDEL', key, 'due_group')
  elseif not task.order_key or has_turn(task, key) then
    redis.call('HSET', key, 'state', 'pending', 'pending_since', nanoseconds)
    if task.front then
      redis.call('HDEL', key, 'front')
      table.insert(front, 1, task.id) -- the first that was due is the next to run
    else
      ids[#ids + 1] = task.id
    end
    moved = moved + 1
  end
  if task.unique_key and not task.reason then keep_its_lock(task) end
end
in_chunks('LPUSH', pending, ids)
in_chunks('RPUSH', pending, front)

-- Tasks that wait for a limit that has room again.
local limited = keys.limited()
moved = moved + call_up_all(redis.call('ZRANGEBYSCORE', limited, '-inf', whole(now), 'LIMIT', 0, 100))
local next_due = earliest(due, scheduled, retry)
local _, next_room = first_of(limited)
if next_room then
  -- Nothing is planned further ahead than a minute: what is, was planned before the clock was set back.
  local soon = '(' .. whole(now + 60000)
  moved = moved + call_up_all(redis.call('ZRANGEBYSCORE', limited, soon, '+inf', 'LIMIT', 0, 100))
  _, next_room = first_of(limited)
end
if next_room then next_due = math.min(next_due or math.huge, next_room) end
if pause_ms > 0 and #found >= limit and next_due and next_due <= now then
  if redis.call('LLEN', pending) > ENOUGH * limit then pause_ms = 3 * pause_ms end
  redis.call('SET', keys.forwarding(), forwarder, 'PX', whole(pause_ms))
  next_due = now + pause_ms
end
return { moved, next_due or -1, now, dropped, beyond }

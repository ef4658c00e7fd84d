-- NEEDS  clock fields sets lanes

-- Limits: `limits` has what was declared ("queue", "task:<type>", "queue-key", "task-key:<type>" -> "at once, starts, per this
-- many ms"). A scope is what one limit counts: the queue, a type, or one key. Of each scope: `slots`, which tasks run and until
-- when (s); `starts`, when the last ones began; `waiting`, which tasks are over the limit, by arrival; `called`, which were let
-- back into pending and have room kept for a while (ms). `limited` says when to check a scope that has waiting tasks.
local CALLED_MS = 10000

-- limit_from: a declared limit as numbers; nil where there is none.
local function limit_from(text)
  if type(text) ~= 'string' then return nil end
  local most, count, per = string.match(text, '^(%d+) (%d+) (%d+)$')
  return most and { most = tonumber(most), count = tonumber(count), per = tonumber(per) } or nil
end

-- limit_of: the limit that counts a scope. The name of a key's scope has the length of the type before the type.
local function limit_of(queue_prefix, scope)
  local spec = scope
  if string.find(scope, '^queue%-key:') then
    spec = 'queue-key'
  else
    local size, rest = string.match(scope, '^task%-key:(%d+):(.*)$')
    if size then spec = 'task-key:' .. string.sub(rest, 1, tonumber(size)) end
  end
  return limit_from(redis.call('HGET', keys.limits(), spec))
end

-- called_in: for how many tasks room is kept in a scope, and when the first of them loses it.
local function called_in(queue_prefix, scope, now)
  local called = keys.called(scope)
  redis.call('ZREMRANGEBYSCORE', called, '-inf', whole(now))
  local kept = redis.call('ZCARD', called)
  if kept > 0 then -- what is kept for longer was written before the clock was set back
    kept = kept - redis.call('ZREMRANGEBYSCORE', called, '(' .. whole(now + CALLED_MS), '+inf')
  end
  while kept > 0 do
    local id, lapse = first_of(called)
    if redis.pcall('HGET', keys.task(id), 'state') == 'pending' then return kept, lapse end
    redis.call('ZREM', called, id) -- a Go peer has taken, archived or deleted it
    kept = kept - 1
  end
  return 0, math.huge
end

-- free_at_once: how many more may run at once in a scope; if none, also when the next one may. `kept` is the number of tasks that
-- have room kept.
local function free_at_once(queue_prefix, scope, most, kept, now)
  local slots = keys.slots(scope)
  -- A task that still has a lease still runs, or nobody has claimed it: where the clock was set forward, it is only not renewed.
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', slots, '-inf', whole(math.floor(now / 1000)))) do
    if not has_member(keys.lease(), id) then redis.call('ZREM', slots, id) end
  end
  local free = most - redis.call('ZCARD', slots) - kept
  if free > 0 then return free, 0 end
  local _, ends = first_of(slots)
  return free, ends and math.max(ends * 1000, now + 1000) or math.huge
end

-- put_back: starts that lie ahead, because the clock was set back since, count as begun just now.
local function put_back(starts, now)
  local ahead = 0
  for _, at in ipairs(redis.call('LRANGE', starts, 0, -1)) do
    if tonumber(at) > now then ahead = ahead + 1 end
  end
  redis.call('LTRIM', starts, 0, -ahead - 1)
  for _ = 1, ahead do redis.call('RPUSH', starts, whole(now)) end
end

-- forget_starts: delete the starts that are a whole period ago. Returns how many are left.
local function forget_starts(starts, per, now)
  local passed
  repeat
    passed = 0
    for _, at in ipairs(redis.call('LRANGE', starts, 0, 49)) do
      if tonumber(at) + per > now then break end
      passed = passed + 1
    end
    if passed > 0 then redis.call('LTRIM', starts, passed, -1) end
  until passed < 50
  return redis.call('LLEN', starts)
end

-- free_starts: how many more may begin in a scope within its period; if none, also when the next one may: when the start that is
-- `count` back is a whole period ago.
local function free_starts(queue_prefix, scope, limit, kept, now)
  local starts = keys.starts(scope)
  local begun = forget_starts(starts, limit.per, now)
  local free = limit.count - begun - kept
  if free > 0 then return free, 0 end
  if begun > 0 and tonumber(redis.call('LINDEX', starts, -1)) > now + 1 then put_back(starts, now) end
  local blocking = redis.call('LINDEX', starts, begun + kept - limit.count)
  return free, blocking and tonumber(blocking) + limit.per or math.huge
end

-- room: how many more tasks may begin in a scope now, not counting those with room kept for them; if none, also when to check
-- again; and for how many room is kept.
local function room(queue_prefix, scope, limit, now)
  local kept, lapse = called_in(queue_prefix, scope, now)
  local free, at = math.huge, 0
  if limit.most > 0 then
    local frees_at
    free, frees_at = free_at_once(queue_prefix, scope, limit.most, kept, now)
    if free <= 0 then at = math.min(lapse, frees_at) end
  end
  if limit.count > 0 then
    local left, begins_at = free_starts(queue_prefix, scope, limit, kept, now)
    if left <= 0 then at = math.max(at, math.min(lapse, begins_at)) end
    free = math.min(free, left)
  end
  return free, at, kept
end

-- look_at: plan when to check a scope that has waiting tasks; the forwarders are woken if that is before all else.
local function look_at(queue_prefix, scope, at, now)
  local limited = keys.limited()
  local _, first = first_of(limited)
  at = math.min(at, now + 60000)
  redis.call('ZADD', limited, whole(at), scope)
  if not first or at < first then redis.pcall('PUBLISH', keys.delay_wakeup(), whole(at)) end
end

-- has_room_elsewhere: whether the other limits of a task have room as well. If one has not, the task waits for that one
-- instead: only a task that can begin is called, or two limits would send it to and fro.
local function has_room_elsewhere(queue_prefix, id, scope, others, since, now)
  for _, other in ipairs(others) do
    local limit = other ~= scope and limit_of(queue_prefix, other)
    if limit then
      local free, at = room(queue_prefix, other, limit, now)
      if free <= 0 then
        redis.call('ZADD', keys.waiting(other), since and string.sub(since, 1, -4) or whole(now * 1000), id)
        redis.call('HSET', keys.task(id), 'limited_by', other)
        look_at(queue_prefix, other, at, now)
        return false
      end
    end
  end
  return true
end

-- keep_room: the room that a called task has in its scopes, so that none that comes later takes it.
local function keep_room(queue_prefix, scopes, id, now)
  for _, scope in ipairs(scopes) do
    redis.call('ZADD', keys.called(scope), whole(now + CALLED_MS), id)
    redis.call('PEXPIRE', keys.called(scope), 6 * CALLED_MS)
  end
end

-- call_up: let as many of those that wait for a scope back into pending as there is room for, the first to come first. Room is
-- kept for them in all their scopes. Returns their number.
-- Those that wait for one key also share the wider limit that stops the first of them: of these no more are tried than there is
-- room for. Of a type's, the next may have another key: they are tried until one can begin.
local function call_up(queue_prefix, scope, now, nanoseconds)
  local waiting, limited = keys.waiting(scope), keys.limited()
  local limit = redis.call('ZCARD', waiting) > 0 and limit_of(queue_prefix, scope)
  local free, at, number, tried = math.huge, now, 0, 0
  if limit then free, at = room(queue_prefix, scope, limit, now) end
  local most = string.find(scope, '^%a+%-key:') and math.min(free, 200) or (free > 0 and 200 or 0)
  if not can_call() then most = 0 end
  while number < free and tried < most do
    local id = unpack(redis.call('ZPOPMIN', waiting), 1, 1)
    if not id then break end
    local key = keys.task(id)
    local task = read_task(key, 'state', 'limited_by', 'pending_since', 'limit_scopes') or {}
    if task.state == 'scheduled' and task.limited_by == scope and is_parked(queue_prefix, id, scope) then
      tried = tried + 1
      local scopes = task.limit_scopes and cjson.decode(task.limit_scopes) or { scope }
      if has_room_elsewhere(queue_prefix, id, scope, scopes, task.pending_since, now) then
        if limit then keep_room(queue_prefix, scopes, id, now) end
        into_line(queue_prefix, id, task.pending_since, nanoseconds)
        redis.call('HDEL', key, 'limited_by', 'limit_scopes')
        number = number + 1
      end
    end
  end
  if redis.call('ZCARD', waiting) == 0 then
    redis.call('ZREM', limited, scope)
  elseif limit then
    local is_stopped = tried < 200 and number < tried -- by another limit: when that has room, this scope is checked as well
    free, at = room(queue_prefix, scope, limit, now)
    if free > 0 then at = is_stopped and now + 1000 or now end
    look_at(queue_prefix, scope, at, now)
  else
    look_at(queue_prefix, scope, now, now)
  end
  return number
end

-- free_slots: a task no longer runs: those that wait for its room get it. A worker that was turned away because the whole
-- queue was full is woken. It comes last and never fails a settlement.
local function free_slots(queue_prefix, slots, id, now, nanoseconds)
  for _, scope in ipairs(cjson.decode(slots)) do
    redis.pcall('ZREM', keys.slots(scope), id)
    if scope ~= 'queue' then
      pcall(call_up, queue_prefix, scope, now, nanoseconds)
    elseif redis.call('DEL', keys.full()) == 1 then
      redis.pcall('PUBLISH', keys.delay_wakeup(), 'room')
    end
  end
end

-- make_room: tasks have ended: in their lanes the next ones take their turns, and their slots are free.
local function make_room(queue_prefix, tasks, now, nanoseconds)
  for _, task in ipairs(tasks) do
    if task.order_key then leave_lane(queue_prefix, task.order_key, task.id, nanoseconds) end
    if task.slots then free_slots(queue_prefix, task.slots, task.id, now, nanoseconds) end
  end
end

-- keep_slots: a task goes on running, until this second at least.
local function keep_slots(queue_prefix, slots, id, lease_end)
  for _, scope in ipairs(cjson.decode(slots)) do
    local key = keys.slots(scope)
    redis.call('ZADD', key, lease_end, id)
    redis.call('EXPIREAT', key, whole(tonumber(lease_end) + 3600))
  end
end

-- stop_waiting: a parked task goes elsewhere.
local function stop_waiting(queue_prefix, scope, id)
  local waiting = keys.waiting(scope)
  redis.call('ZREM', waiting, id)
  if redis.call('EXISTS', waiting) == 0 then redis.call('ZREM', keys.limited(), scope) end
end

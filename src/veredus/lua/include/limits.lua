-- Limits: `limits` has what was declared ("queue", "task:<type>", "queue-key", "task-key:<type>" -> "at once, starts,
-- per so many ms"). A scope is what one limit counts: the queue, a type, or one key. Of each scope: `slots`, who runs and
-- until when (s); `starts`, when the last ones began; `waiting`, who is over the limit, by arrival; `called`, who was let
-- back into the line and has room kept for a while (ms). `limited` says when to look at a scope that somebody waits for.
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
  if string.sub(scope, 1, 10) == 'queue-key:' then
    spec = 'queue-key'
  else
    local digits, size = string.match(scope, '^task%-key:((%d+):)')
    if digits then spec = 'task-key:' .. string.sub(scope, 10 + #digits, 9 + #digits + tonumber(size)) end
  end
  return limit_from(redis.call('HGET', queue_prefix .. 'limits', spec))
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

-- room: how many more may begin in a scope now, not counting those with room kept for them; if none, also when it is
-- worth looking again; and for how many room is kept.
local function room(queue_prefix, scope, limit, now)
  local called = queue_prefix .. 'called:' .. scope
  redis.call('ZREMRANGEBYSCORE', called, '-inf', whole(now))
  local kept = redis.call('ZCARD', called)
  if kept > 0 then -- what is kept for longer was written before the clock was set back
    kept = kept - redis.call('ZREMRANGEBYSCORE', called, '(' .. whole(now + CALLED_MS), '+inf')
  end
  local lapse = kept > 0 and tonumber(redis.call('ZRANGE', called, 0, 0, 'WITHSCORES')[2]) or math.huge
  local free, at = math.huge, 0
  if limit.most > 0 then
    local slots = queue_prefix .. 'slots:' .. scope
    -- Whoever still has a lease still runs, or nobody has judged it: where the clock was set forward, it is only not renewed yet.
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', slots, '-inf', whole(math.floor(now / 1000)))) do
      if type(redis.pcall('ZSCORE', queue_prefix .. 'lease', id)) ~= 'string' then redis.call('ZREM', slots, id) end
    end
    free = limit.most - redis.call('ZCARD', slots) - kept
    if free <= 0 then
      local first = redis.call('ZRANGE', slots, 0, 0, 'WITHSCORES')[2]
      at = math.min(lapse, first and math.max(tonumber(first) * 1000, now + 1000) or math.huge)
    end
  end
  if limit.count > 0 then
    -- Exactly: one more may begin when the start that is `count` back is a whole period ago.
    local starts, over = queue_prefix .. 'starts:' .. scope, true
    while over do
      local oldest = redis.call('LRANGE', starts, 0, 49)
      local passed = 0
      while oldest[passed + 1] and tonumber(oldest[passed + 1]) + limit.per <= now do passed = passed + 1 end
      if passed > 0 then redis.call('LTRIM', starts, passed, -1) end
      over = passed == 50
    end
    local begun = redis.call('LLEN', starts)
    local left = limit.count - begun - kept
    if left <= 0 then
      if begun > 0 and tonumber(redis.call('LINDEX', starts, -1)) > now + 1 then put_back(starts, now) end
      local blocking = redis.call('LINDEX', starts, begun + kept - limit.count)
      at = math.max(at, math.min(lapse, blocking and tonumber(blocking) + limit.per or math.huge))
    end
    free = math.min(free, left)
  end
  return free, at, kept
end

-- look_at: plan when to look at a scope that somebody waits for; the forwarders are told if that is before all else.
local function look_at(queue_prefix, scope, at, now)
  local limited = queue_prefix .. 'limited'
  local first = redis.call('ZRANGE', limited, 0, 0, 'WITHSCORES')[2]
  at = math.min(at, now + 60000)
  redis.call('ZADD', limited, whole(at), scope)
  if not first or at < tonumber(first) then redis.call('PUBLISH', queue_prefix .. 'delay_wakeup', whole(at)) end
end

-- has_room_elsewhere: whether the other limits of a task have room as well. If one has not, the task waits for that one
-- instead: only who can begin is called, or two limits would send it to and fro.
local function has_room_elsewhere(queue_prefix, id, scope, others, since, now)
  for _, other in ipairs(others) do
    local limit = other ~= scope and limit_of(queue_prefix, other)
    if limit then
      local free, at = room(queue_prefix, other, limit, now)
      if free <= 0 then
        redis.call('ZADD', queue_prefix .. 'waiting:' .. other, since and string.sub(since, 1, -4) or whole(now * 1000), id)
        redis.call('HSET', queue_prefix .. 't:' .. id, 'limited_by', other)
        look_at(queue_prefix, other, at, now)
        return false
      end
    end
  end
  return true
end

-- call_up: let as many of those who wait for a scope back into the line as there is room for, the first to come first.
-- Room is kept for them in all their scopes, so that nobody who comes later takes it. Returns their number.
-- Those who wait for one key also share the wider limit that stops the first of them: of these no more are looked at than
-- there is room for. Of a type's, the next may have another key: they are looked at until one can begin.
local function call_up(queue_prefix, scope, now, nanoseconds)
  local waiting, limited = queue_prefix .. 'waiting:' .. scope, queue_prefix .. 'limited'
  local limit = redis.call('ZCARD', waiting) > 0 and limit_of(queue_prefix, scope)
  local free, at, number, looked = math.huge, now, 0, 0
  if limit then free, at = room(queue_prefix, scope, limit, now) end
  local most = string.find(scope, '^%a+%-key:') and math.min(free, 200) or (free > 0 and 200 or 0)
  while number < free and looked < most do
    local id = redis.call('ZPOPMIN', waiting)[1]
    if not id then break end
    local key = queue_prefix .. 't:' .. id
    local fields = redis.pcall('HMGET', key, 'state', 'limited_by', 'pending_since', 'limit_scopes')
    if not fields.err and fields[1] == 'scheduled' and fields[2] == scope and is_parked(queue_prefix, id, scope) then
      looked = looked + 1
      local scopes = fields[4] and cjson.decode(fields[4]) or { scope }
      if has_room_elsewhere(queue_prefix, id, scope, scopes, fields[3], now) then
        for _, one in ipairs(limit and scopes or {}) do
          redis.call('ZADD', queue_prefix .. 'called:' .. one, whole(now + CALLED_MS), id)
          redis.call('PEXPIRE', queue_prefix .. 'called:' .. one, 6 * CALLED_MS)
        end
        into_line(queue_prefix, id, fields[3] or nil, nanoseconds)
        redis.call('HDEL', key, 'limited_by', 'limit_scopes')
        number = number + 1
      end
    end
  end
  if redis.call('ZCARD', waiting) == 0 then
    redis.call('ZREM', limited, scope)
  elseif limit then
    local stopped = looked < 200 and number < looked -- by another limit: its room comes with a word of its own
    free, at = room(queue_prefix, scope, limit, now)
    if free > 0 then at = stopped and now + 1000 or now end
    look_at(queue_prefix, scope, at, now)
  else
    look_at(queue_prefix, scope, now, now)
  end
  return number
end

-- free_slots: a task no longer runs: whoever waits for its room gets it. A worker that was turned away because the whole
-- queue was full is told. It comes last and never fails a settlement.
local function free_slots(queue_prefix, slots, id, now, nanoseconds)
  for _, scope in ipairs(cjson.decode(slots)) do
    redis.pcall('ZREM', queue_prefix .. 'slots:' .. scope, id)
    if scope ~= 'queue' then
      pcall(call_up, queue_prefix, scope, now, nanoseconds)
    elseif redis.call('DEL', queue_prefix .. 'full') == 1 then
      redis.call('PUBLISH', queue_prefix .. 'delay_wakeup', 'room')
    end
  end
end

-- keep_slots: a task goes on running, until this second at least.
local function keep_slots(queue_prefix, slots, id, lease_end)
  for _, scope in ipairs(cjson.decode(slots)) do
    local key = queue_prefix .. 'slots:' .. scope
    redis.call('ZADD', key, lease_end, id)
    redis.call('EXPIREAT', key, whole(tonumber(lease_end) + 3600))
  end
end

-- stop_waiting: a parked task goes elsewhere.
local function stop_waiting(queue_prefix, scope, id)
  local waiting = queue_prefix .. 'waiting:' .. scope
  redis.call('ZREM', waiting, id)
  if redis.call('EXISTS', waiting) == 0 then redis.call('ZREM', queue_prefix .. 'limited', scope) end
end

-- NEEDS  clock fields sets waking

-- Lanes: tasks with the same order key are in a sorted set of their own, by arrival. Only the first of a lane may be
-- pending, active or in retry; the others are parked: scheduled for a day far off, where Go's tools see valid tasks and
-- Go's forwarder leaves them alone. `lanes` names every lane that has tasks, with the time at which it was last checked.
-- A lane whose key has a wrong type (the doctor finds it) keeps no order and holds up nobody; nor does it fail what
-- was written before.
local PARKED = '9999999999'

-- is_parked: whether a task is parked until its turn comes, and not just due on that day: `waits_for` is its order key, or
-- the limit that it waits for; `due` has the exact time of what we scheduled.
local function is_parked(queue_prefix, id, waits_for)
  if not waits_for or redis.call('ZSCORE', keys.scheduled(), id) ~= PARKED then return false end
  local exact = redis.pcall('ZSCORE', keys.due(), id)
  return type(exact) ~= 'string' or math.ceil(tonumber(exact) / 1000) ~= tonumber(PARKED)
end

-- can_call: whether the keys that a parked task leaves and enters have the right types. Where one has not, tasks stay parked;
-- the scripts that settle other tasks have written before, and must not fail here.
local function can_call()
  return type(redis.pcall('ZCARD', keys.scheduled())) == 'number' and type(redis.pcall('LLEN', keys.pending())) == 'number'
end

-- park: park a task that was just taken out of where it was; `scope` is the limit that it waits for, if any.
local function park(queue_prefix, id, nanoseconds, scope)
  local key = keys.task(id)
  redis.call('ZADD', keys.scheduled(), PARKED, id)
  redis.call('HSETNX', key, 'pending_since', nanoseconds) -- since when it has waited: it keeps that when it comes back
  if scope then
    redis.call('HSET', key, 'state', 'scheduled', 'limited_by', scope)
  else
    redis.call('HSET', key, 'state', 'scheduled')
    redis.call('HDEL', key, 'limited_by')
  end
end

-- into_line: make a parked task pending; as the next to run if it has waited longer than the one that is next, or else
-- a lane would move one step each time that all pending tasks have been served.
local function into_line(queue_prefix, id, since, nanoseconds)
  local pending = keys.pending()
  since = since or nanoseconds
  redis.call('ZREM', keys.scheduled(), id)
  redis.call('HSET', keys.task(id), 'state', 'pending', 'pending_since', since)
  local first = redis.call('LINDEX', pending, -1)
  local other = first and redis.pcall('HGET', keys.task(first), 'pending_since')
  local is_older = type(other) == 'string' and (#since < #other or (#since == #other and since < other))
  redis.call(is_older and 'RPUSH' or 'LPUSH', pending, id)
  wake(queue_prefix)
end

-- next_turn: make sure that the first task of a lane is pending, active or in retry. What has ended or is gone leaves the lane;
-- an archived task that holds up the others stays. It changes nothing where all is well, so it may be called at any time. `most`
-- is how many may leave the lane in this call.
local function next_turn(queue_prefix, order_key, nanoseconds, most)
  local lane, lanes = keys.lane(order_key), keys.lanes()
  for _ = 1, most or 200 do
    local id = first_of(lane)
    if not id then
      if type(redis.pcall('ZCARD', lane)) == 'number' then redis.pcall('ZREM', lanes, order_key) end
      return
    end
    local key = keys.task(id)
    local task = read_task(key, 'state', 'order_key', 'order_hold', 'pending_since', 'limited_by', 'waiting') or {}
    local state = task.order_key == order_key and task.state
    if state == 'pending' or state == 'active' or state == 'retry' then return end
    if state == 'scheduled' and task.waiting then return end -- its handler waits for something: it has begun
    if state == 'scheduled' and not can_call() then break end
    if state == 'scheduled' and is_parked(queue_prefix, id, order_key) then
      local scope = task.limited_by
      if not scope or not redis.call('ZSCORE', keys.waiting(scope), id) then
        into_line(queue_prefix, id, task.pending_since, nanoseconds)
        if scope then redis.call('HDEL', key, 'limited_by') end
      end
      return
    end
    if state == 'archived' and task.order_hold then return end
    redis.call('ZREM', lane, id)
  end
  redis.pcall('ZADD', lanes, 0, order_key) -- more than one call should do: the next sweep begins with it
end

-- leave_lane: a task has ended, or is on its way elsewhere; the next one takes its turn.
local function leave_lane(queue_prefix, order_key, id, nanoseconds)
  redis.pcall('ZREM', keys.lane(order_key), id)
  next_turn(queue_prefix, order_key, nanoseconds)
end

-- yield_lane: a task was archived: it leaves its lane, unless it holds up those behind it.
local function yield_lane(queue_prefix, order_key, id, nanoseconds)
  if redis.call('HEXISTS', keys.task(id), 'order_hold') == 0 then
    leave_lane(queue_prefix, order_key, id, nanoseconds)
  end
end

-- join_lane: put a task at the end of its lane unless it is there already. Returns whether it is its turn.
local function join_lane(queue_prefix, order_key, id, now)
  local lane = keys.lane(order_key)
  local place = redis.pcall('ZSCORE', lane, id)
  if type(place) == 'table' then return true end
  if place then return first_of(lane) == id end
  local _, last = unpack(redis.call('ZRANGE', lane, -1, -1, 'WITHSCORES'), 1, 2)
  redis.call('ZADD', lane, whole((last and tonumber(last) or 0) + 1), id)
  redis.pcall('ZADD', keys.lanes(), 'NX', whole(now), order_key)
  return not last
end

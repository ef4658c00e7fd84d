-- Lanes: tasks with the same order key stand in a sorted set of their own, by arrival. Only the first of a lane may be
-- pending, active or in retry; the others are parked: scheduled for a day far off, where Go's tools see valid tasks and
-- Go's forwarder leaves them alone. `lanes` names every lane that has tasks, with the time it was last looked at.
-- A lane whose key has a wrong type (the doctor finds it) keeps no order and holds up nobody; nor does it fail what
-- was written before.
local PARKED = '9999999999'

-- is_parked: whether a task is kept aside until its turn comes, and not just due on that day: `waits_for` is its order
-- key, or the limit that it waits for; `due` has the exact time of what was scheduled by us.
local function is_parked(queue_prefix, id, waits_for)
  if not waits_for or redis.call('ZSCORE', queue_prefix .. 'scheduled', id) ~= PARKED then return false end
  local exact = redis.pcall('ZSCORE', queue_prefix .. 'due', id)
  return type(exact) ~= 'string' or math.ceil(tonumber(exact) / 1000) ~= tonumber(PARKED)
end

-- park: keep a task aside that was just taken out of where it was; `scope` is the limit that it waits for, if any.
local function park(queue_prefix, id, nanoseconds, scope)
  local key = queue_prefix .. 't:' .. id
  redis.call('ZADD', queue_prefix .. 'scheduled', PARKED, id)
  redis.call('HSETNX', key, 'pending_since', nanoseconds) -- since when it has waited: it keeps that when it comes back
  if scope then
    redis.call('HSET', key, 'state', 'scheduled', 'limited_by', scope)
  else
    redis.call('HSET', key, 'state', 'scheduled')
    redis.call('HDEL', key, 'limited_by')
  end
end

-- into_line: make a parked task pending; as the next to run if it has waited longer than the one that is next, or else
-- a lane would move one step each time that the whole line has been served.
local function into_line(queue_prefix, id, since, nanoseconds)
  local pending = queue_prefix .. 'pending'
  since = since or nanoseconds
  redis.call('ZREM', queue_prefix .. 'scheduled', id)
  redis.call('HSET', queue_prefix .. 't:' .. id, 'state', 'pending', 'pending_since', since)
  local first = redis.call('LINDEX', pending, -1)
  local other = first and redis.pcall('HGET', queue_prefix .. 't:' .. first, 'pending_since')
  local is_older = type(other) == 'string' and (#since < #other or (#since == #other and since < other))
  redis.call(is_older and 'RPUSH' or 'LPUSH', pending, id)
end

-- next_turn: see to it that the first of a lane is on its way. What has ended or is gone leaves the lane; an archived
-- task that shall hold up the others stays. It changes nothing where all is well, so it may be called at any time. `most` is how
-- many may leave the lane in this call.
local function next_turn(queue_prefix, order_key, nanoseconds, most)
  local lane, lanes = queue_prefix .. 'lane:' .. order_key, queue_prefix .. 'lanes'
  for _ = 1, most or 200 do
    local first = redis.pcall('ZRANGE', lane, 0, 0)
    if first.err then return end
    local id = first[1]
    if not id then
      redis.pcall('ZREM', lanes, order_key)
      return
    end
    local key = queue_prefix .. 't:' .. id
    local fields = redis.pcall('HMGET', key, 'state', 'order_key', 'order_hold', 'pending_since', 'limited_by')
    local state = not fields.err and fields[2] == order_key and fields[1]
    if state == 'pending' or state == 'active' or state == 'retry' then return end
    if state == 'scheduled' and is_parked(queue_prefix, id, order_key) then
      local scope = fields[5]
      if not scope or not redis.call('ZSCORE', queue_prefix .. 'waiting:' .. scope, id) then
        into_line(queue_prefix, id, fields[4] or nil, nanoseconds)
        if scope then redis.call('HDEL', key, 'limited_by') end
      end
      return
    end
    if state == 'archived' and fields[3] then return end
    redis.call('ZREM', lane, id)
  end
  redis.pcall('ZADD', lanes, 0, order_key) -- more than one call should do: the next sweep begins with it
end

-- leave_lane: a task has ended, or is on its way elsewhere; the next one takes its turn.
local function leave_lane(queue_prefix, order_key, id, nanoseconds)
  redis.pcall('ZREM', queue_prefix .. 'lane:' .. order_key, id)
  next_turn(queue_prefix, order_key, nanoseconds)
end

-- yield_lane: a task was archived: it leaves its lane, unless it shall hold up those behind it.
local function yield_lane(queue_prefix, order_key, id, nanoseconds)
  if redis.call('HEXISTS', queue_prefix .. 't:' .. id, 'order_hold') == 0 then
    leave_lane(queue_prefix, order_key, id, nanoseconds)
  end
end

-- join_lane: put a task at the end of its lane unless it stands there already. Returns whether it is its turn.
local function join_lane(queue_prefix, order_key, id, now)
  local lane = queue_prefix .. 'lane:' .. order_key
  local place = redis.pcall('ZSCORE', lane, id)
  if type(place) == 'table' then return true end
  if place then return redis.call('ZRANGE', lane, 0, 0)[1] == id end
  local last = redis.call('ZRANGE', lane, -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', lane, whole((last and tonumber(last) or 0) + 1), id)
  redis.pcall('ZADD', queue_prefix .. 'lanes', 'NX', whole(now), order_key)
  return not last
end

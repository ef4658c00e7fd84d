-- NEEDS  clock ownership waking

-- Waiting tasks: the handler of a durable task has left its worker until something comes. Such a task is scheduled, at the instant at
-- which its wait ends or else far in the future, and its field `waiting` says what it waits for: `kind until since field`. `until` is
-- an instant in ms, 0 for none; `field` is the field of the task that gets the outcome, which begins with + or -. `waits` has
-- waiting tasks by the time of the next look.
local UNTIL_WOKEN = '9999999998'

-- read_wait: the parts of the field `waiting`; nothing if it is damaged.
local function read_wait(waiting)
  local kind, ends, since, field = string.match(waiting, '^(%l+) (%d+) (%d+) (.+)$')
  return kind, tonumber(ends), tonumber(since), field
end

-- is_outcome: whether the value of a wait's field is its outcome, and not only the instant at which it ends.
local function is_outcome(value)
  local first = value and string.sub(value, 1, 1)
  return first == '+' or first == '-'
end

-- note_came: note when the outcome of a wait has come, behind the instant at which it began.
local function note_came(key, field, now)
  local noted = 'b:' .. field
  redis.call('HSET', key, noted, (redis.call('HGET', key, noted) or whole(now)) .. ' ' .. whole(now))
end

-- is_wait_over: whether what a task waits for has come. A damaged field delays no other task.
local function is_wait_over(key, waiting, now)
  local kind, ends, _, field = read_wait(waiting)
  if not kind or (ends > 0 and ends <= now) then return true end
  return is_outcome(redis.call('HGET', key, field))
end

-- next_look: when to look again at what a task waits for: soon at first, later every five minutes.
local function next_look(since, now)
  local age = now - since
  if age < 1000 then return now + 1000 end
  if age < 10000 then return now + 5000 end
  if age < 60000 then return now + 30000 end
  return now + 300000
end

-- set_aside: make a task wait that was just taken out of where it was. Returns the instant at which it is due, if there is one.
local function set_aside(queue_prefix, id, waiting, unique_key, now)
  local key, due = keys.task(id), keys.due()
  local kind, ends, since = read_wait(waiting)
  redis.call('HSET', key, 'state', 'scheduled', 'waiting', waiting, 'front', '1') -- forward brings it to the front of pending
  redis.call('HDEL', key, 'pending_since')
  if ends > 0 then
    redis.call('ZADD', keys.scheduled(), whole(math.ceil(ends / 1000)), id)
    redis.call('ZADD', due, whole(ends), id)
  else
    redis.call('ZADD', keys.scheduled(), UNTIL_WOKEN, id)
    redis.call('ZREM', due, id)
  end
  if kind ~= 'sleep' or unique_key then redis.call('ZADD', keys.waits(), whole(next_look(since, now)), id) end
  keep_lock(unique_key, id, 3600000) -- each look renews it
  return ends > 0 and ends or nil
end

-- call_back: a waiting task is the next to run. Returns whether it was waiting.
local function call_back(queue_prefix, id, unique_key, nanoseconds)
  if redis.call('ZREM', keys.scheduled(), id) == 0 then return false end
  local key = keys.task(id)
  redis.call('ZREM', keys.due(), id)
  redis.call('ZREM', keys.waits(), id)
  redis.call('HSET', key, 'state', 'pending', 'pending_since', nanoseconds)
  redis.call('HDEL', key, 'front')
  keep_lock(unique_key, id, 0)
  redis.call('RPUSH', keys.pending(), id)
  wake(queue_prefix)
  return true
end

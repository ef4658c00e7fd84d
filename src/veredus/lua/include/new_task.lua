-- NEEDS  clock task_exists

-- lock_seconds: how long the unique lock of a new task is kept that becomes due after `wait_ms`.
local function lock_seconds(unique_ttl, wait_ms)
  return whole(tonumber(unique_ttl) + math.max(0, math.floor(wait_ms / 1000)))
end

-- refusal: why a new task is refused: 0 the id exists, -1 another task holds the unique lock; nil if it is not, and then the lock
-- is taken. The id comes first: a refused id must not leave a lock behind. `is_free`: it is known that no such id exists.
local function refusal(key, id, unique_key, unique_ttl, wait_ms, is_free)
  if not is_free and task_exists(key) then return 0 end
  if unique_key == '' then return nil end
  local seconds = lock_seconds(unique_ttl, wait_ms)
  return not redis.call('SET', unique_key, id, 'NX', 'EX', seconds) and -1 or nil
end

-- store_task: write the hash of a new task, with further fields and values as given.
local function store_task(key, message, state, unique_key, expires, now_up, ...)
  redis.call('HSET', key, 'msg', message, 'state', state, ...)
  if unique_key and unique_key ~= '' then redis.call('HSET', key, 'unique_key', unique_key) end
  if expires and expires ~= '' then redis.call('HSET', key, 'expires_at', whole(instant(expires, now_up))) end
end

-- bind_task: the order key and the limit key of a new task, as far as it has them.
local function bind_task(key, order_key, order_hold, limit_key)
  if order_key ~= '' then redis.call('HSET', key, 'order_key', order_key) end
  if order_key ~= '' and order_hold then redis.call('HSET', key, 'order_hold', '1') end
  if limit_key ~= '' then redis.call('HSET', key, 'limit_key', limit_key) end
end

-- plan_task: a task is due at this millisecond. The shared set has whole seconds, rounded up (Go's tools refuse fractions); the
-- exact instant is in our index.
local function plan_task(set, due, id, at)
  redis.call('ZADD', set, whole(math.ceil(at / 1000)), id)
  redis.call('ZADD', due, whole(at), id)
end

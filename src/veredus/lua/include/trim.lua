-- NEEDS  clock chunks ownership

-- keep_within: hold the archive to its age and size: a bounded number per call, always more than come in, so that
-- any excess melts away.
local function keep_within(archived, max_size, max_age, seconds, room)
  local old = redis.call('ZRANGEBYSCORE', archived, '-inf', whole(seconds - max_age), 'LIMIT', 0, room)
  if #old == 0 then
    local excess = redis.call('ZCARD', archived) - (max_size - 1) -- Asynq keeps one less than its limit
    if excess > 0 then old = redis.call('ZRANGE', archived, 0, math.min(excess, room) - 1) end
  end
  local task_keys = {}
  for i, id in ipairs(old) do
    task_keys[i] = keys.task(id)
    local lock = redis.pcall('HGET', task_keys[i], 'unique_key')
    if type(lock) == 'string' then release(lock, id) end
  end
  in_chunks('ZREM', archived, old)
  delete_all(task_keys)
end

-- Putting tasks that were taken out where they shall be. Needs places, clock, chunks, hold, trim and tell.

-- into_pending: to the back of the line, or to its front with the first of the tasks as the next to run.
local function into_pending(tasks, front, now, nanoseconds)
  local ids = {}
  for i, task in ipairs(tasks) do
    redis.call('HSET', task.key, 'state', 'pending', 'pending_since', nanoseconds)
    redis.call('HDEL', task.key, 'owner', 'until')
    -- Whoever runs a task that has expired means it: with the old limit it would be dropped unseen.
    if task.expires and tonumber(task.expires) <= now then redis.call('HDEL', task.key, 'expires_at') end
    ids[front and #tasks + 1 - i or i] = task.id
  end
  in_chunks(front and 'RPUSH' or 'LPUSH', pending, ids)
end

-- into_archive: put aside. Nothing holds its unique lock from there. Returns how many old ones were deleted for it.
local function into_archive(tasks, seconds, max_size, max_age)
  local rows = {}
  for _, task in ipairs(tasks) do
    rows[#rows + 1] = whole(seconds)
    rows[#rows + 1] = task.id
    redis.call('HSET', task.key, 'state', 'archived')
    redis.call('HDEL', task.key, 'pending_since', 'owner', 'until', 'waited', 'cancel')
    release(task.lock, task.id)
  end
  in_chunks('ZADD', archived, rows)
  local before = redis.call('ZCARD', archived)
  keep_within(archived, task_prefix, max_size, max_age, seconds, #tasks + 100)
  for _, task in ipairs(tasks) do tell(task.waited, 'archived', task.key) end
  return before - redis.call('ZCARD', archived)
end

-- into_nothing: delete, with the unique lock.
local function into_nothing(tasks)
  local keys = {}
  for i, task in ipairs(tasks) do
    release(task.lock, task.id)
    keys[i] = task.key
  end
  delete_all(keys)
  for _, task in ipairs(tasks) do tell(task.waited, 'cancelled', task.key) end
end

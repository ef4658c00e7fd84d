-- NEEDS  clock chunks ownership trim notify_waiters lanes limits due_group waking

-- Putting tasks that were taken out into another container.

-- hand_over: other tasks may wait behind a task that was archived or deleted.
local function hand_over(task)
  local _, _, nanoseconds = clock()
  if task.limited_by then stop_waiting(queue_prefix, task.limited_by, task.id) end
  if task.order_key then yield_lane(queue_prefix, task.order_key, task.id, nanoseconds) end
end

-- into_pending: to the back of the line, or to its front with the first of the tasks as the next to run. One with an
-- order key takes its place in its lane, and is parked there until its turn comes.
local function into_pending(tasks, front, now, nanoseconds)
  local ids = {}
  for _, task in ipairs(tasks) do
    redis.call('HSET', task.key, 'state', 'pending', 'pending_since', nanoseconds)
    redis.call('HDEL', task.key, 'held', 'limited_by', 'cancel', 'cancel_of')
    if task.state == 'archived' then
      redis.call('HDEL', task.key, 'losses') -- it may crash as often as a new one
      if redis.call('HEXISTS', task.key, 'run') == 1 then redis.call('HSET', task.key, 'resumed', '1') end -- see durable/retake
    end
    if task.group then leave_group_until_due(task.key, task.group, task.lock) end -- it joins it again only if it fails
    keep_lock(task.lock, task.id, 0)
    -- A task that has expired and is run on purpose must run: its old limit would drop it.
    if task.expires and (tonumber(task.expires) or math.huge) <= now then redis.call('HDEL', task.key, 'expires_at') end
    if task.order_key and not join_lane(queue_prefix, task.order_key, task.id, now) then
      park(queue_prefix, task.id, nanoseconds)
    elseif front then
      table.insert(ids, 1, task.id)
    else
      ids[#ids + 1] = task.id
    end
  end
  in_chunks(front and 'RPUSH' or 'LPUSH', pending, ids)
  if #ids > 0 then wake(queue_prefix) end
end

-- into_archive: archive tasks and release their unique locks. Returns how many old ones were deleted for it.
local function into_archive(tasks, seconds, max_size, max_age)
  local rows = {}
  for _, task in ipairs(tasks) do
    rows[#rows + 1] = whole(seconds)
    rows[#rows + 1] = task.id
    redis.call('HSET', task.key, 'state', 'archived')
    redis.call('HDEL', task.key, 'pending_since', 'held', 'waited', 'cancel', 'cancel_of', 'limited_by')
    release(task.lock, task.id)
  end
  in_chunks('ZADD', archived, rows)
  local before = redis.call('ZCARD', archived)
  keep_within(archived, max_size, max_age, seconds, #tasks + 100)
  for _, task in ipairs(tasks) do
    hand_over(task)
    notify_waiters(task.waited, 'archived', task.key)
  end
  return before - redis.call('ZCARD', archived)
end

-- into_nothing: delete, with the unique lock.
local function into_nothing(tasks)
  local task_keys = {}
  for i, task in ipairs(tasks) do
    release(task.lock, task.id)
    task_keys[i] = task.key
  end
  delete_all(task_keys)
  for _, task in ipairs(tasks) do
    hand_over(task)
    notify_waiters(task.waited, 'cancelled', task.key)
  end
end

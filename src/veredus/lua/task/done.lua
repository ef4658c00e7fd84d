-- done: delete tasks that succeeded and leave nothing behind.
-- KEYS  active lease
-- ARGV  queue_prefix common_owner ROWS task_id [owner unique_key]
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- NEEDS  clock checks chunks active ownership counters
-- Rows are ids alone when all tasks are of `common_owner` and none has a unique lock.
local now, _, nanoseconds = clock()
expect(active, 'list')

-- Most queues have neither order keys nor limits: then there is less to read of each task.
local is_plain = redis.call('EXISTS', keys.lanes(), keys.limits(), keys.limited()) == 0
local ends = lease_ends(lease, rows_first, rows_width, rows_count)
local count, ids, task_keys, positions, lost = 0, {}, {}, {}, {}
local waited_for, leaving = {}, {}
local expected, expected_owner, expected_end
for i, task_id, owner, unique_key in rows() do
  local key, lease_end = keys.task(task_id), ends[i]
  local held, waited, order_key, slots
  owner = owner or common_owner
  if lease_end ~= expected_end or owner ~= expected_owner then -- most were taken together and end together
    expected_owner, expected_end = owner, lease_end
    expected = lease_end and held_by(owner, lease_end)
  end
  if is_plain then
    held, waited = unpack(read('HMGET', key, 'held', 'waited'), 1, 2)
  else
    held, waited, order_key, slots = unpack(read('HMGET', key, 'held', 'waited', 'order_key', 'slots'), 1, 4)
  end
  if expected and held == expected then
    count = count + 1
    ids[count], task_keys[count], positions[count] = task_id, key, i
    release(unique_key, task_id)
    if waited then
      local verb = redis.call('HGET', key, 'cancel') == 'delete' and 'cancelled' or 'done'
      waited_for[#waited_for + 1] = { waited = waited, verb = verb, key = key }
    end
    if order_key or slots then leaving[#leaving + 1] = { id = task_id, order_key = order_key, slots = slots } end
  else
    lost[#lost + 1] = i
  end
end

-- An id that came twice is no longer held the second time. To look for that in each call would cost 2 % more
-- instructions of the server.
if in_chunks('ZREM', lease, ids) < count then
  local first, repeated = {}, 0
  for n = 1, count do
    if first[ids[n]] then
      repeated, lost[#lost + 1] = repeated + 1, positions[n]
    else
      first[ids[n]] = true
      ids[n - repeated], task_keys[n - repeated] = ids[n], task_keys[n]
    end
  end
  for n = count - repeated + 1, count do ids[n], task_keys[n] = nil, nil end
  count = count - repeated
end
leave_active_list(active, ids)
delete_all(task_keys)

if #leaving > 0 then
  -- include: limits
  make_room(queue_prefix, leaving, now, nanoseconds)
end
if #waited_for > 0 then
  -- include: notify_waiters
  for _, task in ipairs(waited_for) do notify_waiters(task.waited, task.verb, task.key) end
end
tally(now, count, 0)
return lost

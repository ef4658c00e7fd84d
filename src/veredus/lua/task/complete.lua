-- complete: keep tasks that succeeded, with their result, until their retention ends.
-- KEYS  active lease completed
-- ARGV  queue_prefix ROWS task_id owner unique_key message retention:number has_result:flag result attempt
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- NEEDS  clock checks chunks active ownership counters attempts
local now, _, nanoseconds = clock()
expect(active, 'list')
expect(completed, 'zset')

local ends = lease_ends(lease, rows_first, rows_width, rows_count)
local ids, entries, lost, seen = {}, {}, {}, {}
local waited_for, leaving, is_child = {}, {}, false
for i, task_id, owner, unique_key, message, retention, has_result, result, attempt in rows() do
  local key, lease_end = keys.task(task_id), ends[i]
  local held, waited, order_key, slots, count =
    unpack(read('HMGET', key, 'held', 'waited', 'order_key', 'slots', 'attempts'), 1, 5)
  if lease_end and held == held_by(owner, lease_end) and not seen[task_id] then
    seen[task_id], ids[#ids + 1] = true, task_id
    entries[#entries + 1] = whole(math.floor(now / 1000) + retention)
    entries[#entries + 1] = task_id
    redis.call('HDEL', key, 'held', 'slots', 'lost_by', 'waited', 'cancel', 'cancel_of', 'traceback')
    redis.call('HSET', key, 'msg', message, 'state', 'completed', attempt_fields(count, attempt))
    if has_result then redis.call('HSET', key, 'result', result) end
    release(unique_key, task_id)
    if order_key or slots then leaving[#leaving + 1] = { id = task_id, order_key = order_key, slots = slots } end
    if waited then
      -- The notice has the result itself unless it is large or was written before: then a waiter fetches it.
      local body = has_result and #result <= 65536 and '=' .. result
      if not body and (has_result or redis.call('HEXISTS', key, 'result') == 1) then body = '' end
      local task = { waited = waited, key = key, body = body }
      waited_for[#waited_for + 1] = task
      if string.sub(waited, 1, 1) == '^' then -- a parent
        is_child, task.outcome = true, has_result and '+r' .. result or not body and '+'
      end
    end
  else
    lost[#lost + 1] = i
  end
end

in_chunks('ZREM', lease, ids)
leave_active_list(active, ids)
in_chunks('ZADD', completed, entries)
if #leaving > 0 then
  -- include: limits
  make_room(queue_prefix, leaving, now, nanoseconds)
end
if is_child then
  -- include: joining
  waited_for = join_children(queue_prefix, waited_for)
end
if #waited_for > 0 then
  -- include: notify_waiters
  for _, task in ipairs(waited_for) do notify_waiters(task.waited, 'completed', task.key, task.body) end
end
tally(now, #ids, 0)
return lost

-- enqueue: store new tasks that have an order key or a limit key, now or to be due later.
-- KEYS  pending scheduled retry due sent
-- ARGV  queue_prefix channel number lifetime
--   ROWS task_id message unique_key unique_ttl expires due_at order_key order_hold:flag limit_key
-- RETURNS  one code per task: 1 stored, 0 the id exists, -1 another task holds the unique lock;
--   only -4 for all: the queue is closed, -5: `sent` has another call
-- NEEDS  clock checks wakeup lanes sent new_task waking
-- The same as enqueue and schedule of plain tasks, which need not pay for this. A task that is due now takes its place in
-- its lane and is pending if it is the first there; one that is due later takes its place when it is due.
local now, now_up, nanoseconds, beyond = clock()
expect(pending, 'list')
expect(scheduled, 'zset')
expect(due, 'zset')
expect(keys.lanes(), 'zset')
for i, unique_key, unique_ttl, order_key in rows() do
  expect_ttl(unique_key, unique_ttl)
  if order_key ~= '' then expect(keys.lane(order_key), 'zset') end
end
local first_id = rows(1).task_id
local answered = answer_without_storing(queue_prefix, sent, number, lifetime, first_id, rows_count)
if answered then return answered end

local MOST = 10000 -- places that one call takes from tasks which are gone, some 20 ms of work; a sweep takes the rest
local before, first_new
local codes, is_checked = {}, {}
for i, task_id, message, unique_key, unique_ttl, expires, due_at, order_key, order_hold, limit_key in rows() do
  local key, at = keys.task(task_id), due_at ~= '' and instant(due_at, now, beyond) or nil
  codes[i] = refusal(key, task_id, unique_key, unique_ttl, at and at - now or 0)
  if not codes[i] then
    codes[i] = 1
    store_task(key, message, at and 'scheduled' or 'pending', unique_key, expires, now_up)
    bind_task(key, order_key, order_hold, limit_key)
    -- A task of the same id that Go ended may still have its place in the lane: then the others there are to go on.
    local is_stale = order_key ~= '' and redis.call('ZREM', keys.lane(order_key), task_id) == 1
    if at then
      before = before or earliest(due, scheduled, retry) or math.huge
      plan_task(scheduled, due, task_id, at)
      if not first_new or at < first_new then first_new = at end
    elseif order_key == '' or join_lane(queue_prefix, order_key, task_id, now) then
      redis.call('HSET', key, 'pending_since', nanoseconds)
      redis.call('LPUSH', pending, task_id)
      wake(queue_prefix)
    else
      park(queue_prefix, task_id, nanoseconds)
      -- Those before it may be gone, and nobody else would notice: Go deletes a queue but knows nothing of its lanes.
      is_stale = is_stale or not is_checked[order_key]
      is_checked[order_key] = true
    end
    if is_stale then next_turn(queue_prefix, order_key, nanoseconds, MOST) end
  end
end
announce(channel, before, first_new, now)
return sent_now(sent, number, lifetime, first_id, codes)

-- enqueue: store new tasks that have an order key or a limit key, now or to be due later.
-- KEYS  pending scheduled retry due sent
-- ARGV  task_prefix channel count number lifetime {task_id message unique_key unique_ttl expires due_at order_key order_hold limit_key}* [now_ms]
-- RETURNS  one code per task: 1 stored, 0 the id exists, -1 another task holds the unique lock; only -4 for all: the queue is closed, -5: `sent` has another call
-- include: clock checks closed wakeup lanes sent
-- The same as enqueue and schedule of plain tasks, which need not pay for this. A task that is due now takes its place in
-- its lane and is pending if it is the first there; one that is due later takes its place when it is due.
local pending, scheduled, retry, due, sent = unpack(KEYS)
local task_prefix, channel, count, number, lifetime = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local now, now_up, nanoseconds = clock(ARGV[6 + count * 9])
local queue_prefix = string.sub(task_prefix, 1, -3)
expect(pending, 'list')
expect(scheduled, 'zset')
expect(due, 'zset')
expect(queue_prefix .. 'lanes', 'zset')
for i = 1, count do
  expect_ttl(ARGV[i * 9 - 1], ARGV[i * 9])
  if ARGV[i * 9 + 3] ~= '' then expect(queue_prefix .. 'lane:' .. ARGV[i * 9 + 3], 'zset') end
end
local told = sent_before(sent, number, lifetime, ARGV[6], count)
if told then return told end
if is_closed(task_prefix) then
  sent_nothing(sent, number, lifetime)
  return { -4 }
end

local MOST = 10000 -- places that one call takes from tasks which are gone, some 20 ms of work; a sweep takes the rest
local before, first_new
local codes, is_checked = {}, {}
for i = 1, count do
  local id, message, lock, ttl, expires, due_at, order_key, order_hold, limit_key = unpack(ARGV, i * 9 - 3, i * 9 + 5)
  local key = task_prefix .. id
  local at = due_at ~= '' and instant(due_at, now_up) or nil
  local seconds = lock ~= '' and whole(tonumber(ttl) + (at and math.max(0, math.floor((at - now) / 1000)) or 0))
  if redis.call('EXISTS', key) == 1 then -- before the lock: a refused id must not leave a lock behind
    codes[i] = 0
  elseif lock ~= '' and not redis.call('SET', lock, id, 'NX', 'EX', seconds) then
    codes[i] = -1
  else
    redis.call('HSET', key, 'msg', message, 'state', at and 'scheduled' or 'pending')
    if lock ~= '' then redis.call('HSET', key, 'unique_key', lock) end
    if expires ~= '' then redis.call('HSET', key, 'expires_at', whole(instant(expires, now_up))) end
    local looks = false -- whether to look at the lane: a task of the same id that Go ended may still have its place there
    if order_key ~= '' then
      redis.call('HSET', key, 'order_key', order_key)
      looks = redis.call('ZREM', queue_prefix .. 'lane:' .. order_key, id) == 1
    end
    if order_key ~= '' and order_hold == '1' then redis.call('HSET', key, 'order_hold', '1') end
    if limit_key ~= '' then redis.call('HSET', key, 'limit_key', limit_key) end
    if at then
      before = before or earliest(due, scheduled, retry) or math.huge
      redis.call('ZADD', scheduled, whole(math.ceil(at / 1000)), id)
      redis.call('ZADD', due, whole(at), id)
      if not first_new or at < first_new then first_new = at end
    elseif order_key == '' or join_lane(queue_prefix, order_key, id, now) then
      redis.call('HSET', key, 'pending_since', nanoseconds)
      redis.call('LPUSH', pending, id)
    else
      park(queue_prefix, id, nanoseconds)
      -- Those before it may be gone, and nobody else would notice: Go deletes a queue but knows nothing of its lanes.
      looks = looks or not is_checked[order_key]
      is_checked[order_key] = true
    end
    if looks then next_turn(queue_prefix, order_key, nanoseconds, MOST) end
    codes[i] = 1
  end
end
announce(channel, before, first_new, now)
return sent_now(sent, number, lifetime, ARGV[6], codes)

-- schedule: store new tasks that are due later, to the millisecond, and wake the forwarders if that changes their plan.
-- KEYS  scheduled retry due sent
-- ARGV  task_prefix channel count number lifetime {task_id message unique_key unique_ttl expires due_at group}* [now_ms]
-- RETURNS  one code per task: 1 scheduled, 0 the id exists, -1 another task holds the unique lock; only -4 for all: the queue is closed, -5: `sent` has another call
-- include: clock checks closed wakeup sent
-- The shared set has whole seconds, rounded up (Go's tools refuse fractions); the exact instant stands in our index.
local scheduled, retry, due, sent = unpack(KEYS)
local task_prefix, channel, count, number, lifetime = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local now, now_up = clock(ARGV[6 + count * 7])
expect(scheduled, 'zset')
expect(due, 'zset')
for i = 1, count do expect_ttl(ARGV[i * 7 + 1], ARGV[i * 7 + 2]) end
local told = sent_before(sent, number, lifetime, ARGV[6], count)
if told then return told end
if is_closed(task_prefix) then
  sent_nothing(sent, number, lifetime)
  return { -4 }
end

local before, first_new = earliest(due, scheduled, retry), nil
local codes = {}
for i = 1, count do
  local id, message, lock, ttl, expires, due_at, group = unpack(ARGV, i * 7 - 1, i * 7 + 5)
  local key = task_prefix .. id
  local at = instant(due_at, now_up)
  if redis.call('EXISTS', key) == 1 then
    codes[i] = 0
  elseif lock ~= '' and not redis.call('SET', lock, id, 'NX', 'EX', whole(tonumber(ttl) + math.max(0, math.floor((at - now) / 1000)))) then
    codes[i] = -1
  else
    redis.call('HSET', key, 'msg', message, 'state', 'scheduled')
    if lock ~= '' then redis.call('HSET', key, 'unique_key', lock) end
    if expires ~= '' then redis.call('HSET', key, 'expires_at', whole(instant(expires, now_up))) end
    if group ~= '' then redis.call('HSET', key, 'due_group', group) end -- which group it will join: see include/due_group.lua
    redis.call('ZADD', scheduled, whole(math.ceil(at / 1000)), id)
    redis.call('ZADD', due, whole(at), id)
    if not first_new or at < first_new then first_new = at end
    codes[i] = 1
  end
end
announce(channel, before, first_new, now)
return sent_now(sent, number, lifetime, ARGV[6], codes)

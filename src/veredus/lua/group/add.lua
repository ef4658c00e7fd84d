-- add: put new tasks into their groups, where they wait to be aggregated.
-- KEYS  groups sent
-- ARGV  task_prefix group_prefix count number lifetime {task_id message unique_key unique_ttl expires group}* [now_ms]
-- RETURNS  one code per task: 1 added, 0 the id exists, -1 another task holds the unique lock; only -4 for all: the queue is closed, -5: `sent` has another call
-- include: clock checks closed arrival sent
local groups, sent = KEYS[1], KEYS[2]
local task_prefix, group_prefix, count, number, lifetime = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local now, now_up, nanoseconds = clock(ARGV[6 + count * 6])
expect(groups, 'set')
for i = 1, count do
  expect_ttl(ARGV[i * 6 + 2], ARGV[i * 6 + 3])
  expect(group_prefix .. ARGV[i * 6 + 5], 'zset')
end
local told = sent_before(sent, number, lifetime, ARGV[6], count)
if told then return told end
if is_closed(task_prefix) then
  sent_nothing(sent, number, lifetime)
  return { -4 }
end

local second = whole(math.floor(now / 1000))
local codes = {}
for i = 1, count do
  local id, message, lock, ttl, expires, group = unpack(ARGV, i * 6, i * 6 + 5)
  local key = task_prefix .. id
  if redis.call('EXISTS', key) == 1 then -- before the lock: a refused id must not leave a lock behind
    codes[i] = 0
  elseif lock ~= '' and not redis.call('SET', lock, id, 'NX', 'EX', ttl) then
    codes[i] = -1
  else
    redis.call('HSET', key, 'msg', message, 'state', 'aggregating', 'group', group, 'group_seq', arrival(nanoseconds, i))
    if lock ~= '' then redis.call('HSET', key, 'unique_key', lock) end
    if expires ~= '' then redis.call('HSET', key, 'expires_at', whole(instant(expires, now_up))) end
    redis.call('ZADD', group_prefix .. group, second, id)
    redis.call('SADD', groups, group)
    codes[i] = 1
  end
end
return sent_now(sent, number, lifetime, ARGV[6], codes)

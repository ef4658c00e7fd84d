-- enqueue: put new tasks at the back of pending.
-- KEYS  pending
-- ARGV  task_prefix count {task_id message unique_key unique_ttl expires}* [now_ms]
-- RETURNS  one code per task: 1 enqueued, 0 the id exists, -1 another task holds the unique lock
-- include: clock checks chunks
local pending = KEYS[1]
local task_prefix, count = ARGV[1], tonumber(ARGV[2])
local now, now_up, nanoseconds = clock(ARGV[3 + count * 5])
expect(pending, 'list')
for i = 1, count do expect_ttl(ARGV[i * 5], ARGV[i * 5 + 1]) end

local codes, ids = {}, {}
for i = 1, count do
  local id, message, lock, ttl, expires = unpack(ARGV, i * 5 - 2, i * 5 + 2)
  local key = task_prefix .. id
  if redis.call('EXISTS', key) == 1 then -- before the lock: a refused id must not leave a lock behind
    codes[i] = 0
  elseif lock ~= '' and not redis.call('SET', lock, id, 'NX', 'EX', ttl) then
    codes[i] = -1
  else
    redis.call('HSET', key, 'msg', message, 'state', 'pending', 'pending_since', nanoseconds)
    if lock ~= '' then redis.call('HSET', key, 'unique_key', lock) end
    if expires ~= '' then redis.call('HSET', key, 'expires_at', whole(instant(expires, now_up))) end
    ids[#ids + 1] = id
    codes[i] = 1
  end
end
in_chunks('LPUSH', pending, ids)
return codes

-- enqueue: put new tasks at the back of pending.
-- KEYS  pending sent
-- ARGV  task_prefix count width number lifetime {task_id message [unique_key unique_ttl expires]}* [now_ms]
-- RETURNS  one code per task: 1 enqueued, 0 the id exists, -1 another task holds the unique lock; only -4 for all: the queue is closed, -5: `sent` has another call
-- `width` is 2 when no task of the call has a lock or an expiry, else 5. `sent`, `number` and `lifetime` are those of
-- include/sent.lua.
local pending, sent = KEYS[1], KEYS[2]
local task_prefix, count, width, number, lifetime = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]

-- One task alone, as most clients send them: to make the functions that are included below would take longer than to
-- store it. What clock(), closed_mark() and sent_before() do is written out here; a call that was sent before goes on below.
if count == 1 and width == 2 and not ARGV[8] then
  local id, time = ARGV[6], redis.call('TIME')
  local key = task_prefix .. id
  if redis.call('EXISTS', key, string.sub(task_prefix, 1, -3) .. 'closed') == 0 then
    local before = number ~= '' and redis.call('SET', sent, number .. '  ' .. id, 'EX', lifetime, 'GET')
    if before and before >= number then
      redis.call('SET', sent, before, 'EX', lifetime)
    else
      local nanoseconds = time[1] .. string.sub('00000' .. time[2], -6) .. '000'
      if type(redis.pcall('LPUSH', pending, id)) == 'table' then -- only this can be refused: the record must not stay
        if before then redis.call('SET', sent, before, 'EX', lifetime) else redis.call('DEL', sent) end
        redis.call('LPUSH', pending, id) -- raises the same error
      end
      redis.call('HSET', key, 'msg', ARGV[7], 'state', 'pending', 'pending_since', nanoseconds)
      return { 1 }
    end
  end
end

-- include: clock checks closed chunks sent
local now, now_up, nanoseconds = clock(ARGV[6 + count * width])
local ids, keys, seen, twins = {}, {}, {}, false
for i = 1, count do
  local at = 6 + (i - 1) * width
  local id = ARGV[at]
  ids[i], keys[i] = id, task_prefix .. id
  twins, seen[id] = twins or seen[id], true
  if width > 2 then expect_ttl(ARGV[at + 2], ARGV[at + 3]) end
end
expect(pending, 'list')
local told = sent_before(sent, number, lifetime, ids[1], count)
if told then return told end

-- One question for all: nearly always none of the tasks is there, and the queue is not closed.
keys[count + 1] = closed_mark(task_prefix)
local is_any_there = any_exists(keys)
if is_any_there and is_closed(task_prefix) then
  sent_nothing(sent, number, lifetime)
  return { -4 }
end

local codes = {}
if width == 2 and not twins and not is_any_there then
  in_chunks('LPUSH', pending, ids)
  for i = 1, count do
    redis.call('HSET', keys[i], 'msg', ARGV[5 + 2 * i], 'state', 'pending', 'pending_since', nanoseconds)
    codes[i] = 1
  end
  return codes
end

local stored = {}
seen = {}
for i = 1, count do
  local id, key, at = ids[i], keys[i], 6 + (i - 1) * width
  local lock, ttl, expires = '', '', ''
  if width > 2 then
    lock, ttl, expires = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  end
  -- Before the lock: a refused id must not leave a lock behind.
  if seen[id] or (is_any_there and redis.call('EXISTS', key) == 1) then
    codes[i] = 0
  elseif lock ~= '' and not redis.call('SET', lock, id, 'NX', 'EX', ttl) then
    codes[i] = -1
  else
    redis.call('HSET', key, 'msg', ARGV[at + 1], 'state', 'pending', 'pending_since', nanoseconds)
    if lock ~= '' then redis.call('HSET', key, 'unique_key', lock) end
    if expires ~= '' then redis.call('HSET', key, 'expires_at', whole(instant(expires, now_up))) end
    stored[#stored + 1] = id
    seen[id] = true
    codes[i] = 1
  end
end
in_chunks('LPUSH', pending, stored)
return sent_now(sent, number, lifetime, ids[1], codes)

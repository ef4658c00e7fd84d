-- enqueue: put new tasks at the back of pending.
-- KEYS  pending sent
-- ARGV  queue_prefix number lifetime ROWS task_id message [unique_key unique_ttl expires]
-- RETURNS  one code per task: 1 enqueued, 0 the id exists, -1 another task holds the unique lock;
--   only -4 for all: the queue is closed, -5: `sent` has another call
-- NEEDS  nothing
-- One idle worker is woken (include/waking.lua); it wakes the next one if it cannot take all.
-- `sent`, `number` and `lifetime` are those of include/sent.lua.

-- One task alone, as most clients send them: without the functions that are included below, it takes a third fewer
-- instructions of the server. What clock(), is_closed() and sent_before() do is written out here; a call that was sent before goes on below.
if rows_count == 1 and rows_width == 2 and not given_now_ms then
  local task_id, message = rows(1)
  local key = keys.task(task_id)
  local found = redis.call('EXISTS', key, keys.closed(), keys.idle())
  if found == 0 or (found == 1 and redis.call('EXISTS', keys.idle()) == 1) then
    local seconds, micros = unpack(redis.call('TIME'), 1, 2)
    local before = number ~= '' and redis.call('SET', sent, number .. '  ' .. task_id, 'EX', lifetime, 'GET')
    if before and before >= number then
      redis.call('SET', sent, before, 'EX', lifetime)
    else
      if type(redis.pcall('LPUSH', pending, task_id)) == 'table' then -- only this can be refused: the record must not stay
        if before then redis.call('SET', sent, before, 'EX', lifetime) else redis.call('DEL', sent) end
        redis.call('LPUSH', pending, task_id) -- raises the same error
      end
      local nanoseconds = seconds .. string.sub('00000' .. micros, -6) .. '000'
      redis.call('HSET', key, 'msg', message, 'state', 'pending', 'pending_since', nanoseconds)
      if found == 1 then
        -- include: waking
        wake(queue_prefix)
      end
      return { 1 }
    end
  end
end

-- include: clock checks closed chunks sent new_task waking
local _, now_up, nanoseconds = clock()
local ids, task_keys, seen, has_twins = {}, {}, {}, false
for i, task_id, unique_key, unique_ttl in rows() do
  ids[i], task_keys[i] = task_id, keys.task(task_id)
  has_twins, seen[task_id] = has_twins or seen[task_id], true
  if unique_key then expect_ttl(unique_key, unique_ttl) end
end
expect(pending, 'list')
local first_id = rows(1).task_id
local answered = sent_before(sent, number, lifetime, first_id, rows_count)
if answered then return answered end

-- One question for all: nearly always none of the tasks is there, and the queue is not closed.
task_keys[rows_count + 1] = keys.closed()
local is_any_there = any_exists(task_keys)
if is_any_there and is_closed(queue_prefix) then
  sent_nothing(sent, number, lifetime)
  return { -4 }
end

local codes = {}
if rows_width == 2 and not has_twins and not is_any_there then
  in_chunks('LPUSH', pending, ids)
  for i, message in rows() do
    redis.call('HSET', task_keys[i], 'msg', message, 'state', 'pending', 'pending_since', nanoseconds)
    codes[i] = 1
  end
  wake(queue_prefix)
  return codes
end

local stored, is_free = {}, not has_twins and not is_any_there
for i, task_id, message, unique_key, unique_ttl, expires in rows() do
  local key = task_keys[i]
  codes[i] = refusal(key, task_id, unique_key or '', unique_ttl, 0, is_free)
  if not codes[i] then
    store_task(key, message, 'pending', unique_key, expires, now_up, 'pending_since', nanoseconds)
    stored[#stored + 1] = task_id
    codes[i] = 1
  end
end
in_chunks('LPUSH', pending, stored)
if #stored > 0 then wake(queue_prefix) end
return sent_now(sent, number, lifetime, first_id, codes)

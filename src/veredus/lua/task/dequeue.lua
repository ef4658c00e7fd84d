-- dequeue: hand out as many tasks as asked for, each active, leased and owned by this batch.
-- KEYS  pending paused active lease batch
-- ARGV  task_prefix wanted lease_ms owner number again batch_ttl_ms [now_ms]
-- RETURNS  {now_ms, lease end in s, still pending (-1: paused), {id, message, ...}, {dropped id, reason, ...},
--   {id, how to cancel it, ...}: those among the first that shall not be run but cancelled,
--   ms after which to ask again because the queue is at its limit, or -1}
-- include: clock checks chunks hold
-- `batch` remembers the number of this worker's last batch. Asked again with a number already served (its reply was
-- lost, or an old request arrives after a newer one), the script hands out that same batch instead of a second one.
local pending, paused, active, lease, batch = unpack(KEYS)
local task_prefix, wanted, lease_ms, owner, number, again = unpack(ARGV)
local now, now_up, nanoseconds = clock(ARGV[8])
local queue_prefix = string.sub(task_prefix, 1, -3)
local lease_end = whole(math.ceil((now + tonumber(lease_ms)) / 1000))
local rows, dropped, cancels = {}, {}, {}

if tonumber(redis.call('GET', batch) or 0) >= tonumber(number) then
  -- include: lanes limits
  local running = redis.call('LRANGE', active, 0, -1)
  for i = #running, 1, -1 do -- the first taken stands last
    local id = running[i]
    local key = task_prefix .. id
    local held = holds(key, lease, id, owner, 'cancel')
    if held then
      if held[2] then
        cancels[#cancels + 1] = id
        cancels[#cancels + 1] = held[2]
      end
      redis.call('ZADD', lease, lease_end, id)
      redis.call('HSET', key, 'held', held_by(owner, lease_end))
      if held[5] then keep_slots(queue_prefix, held[5], id, lease_end) end
      rows[#rows + 1] = id
      rows[#rows + 1] = redis.call('HGET', key, 'msg')
    end
  end
  return { now, lease_end, redis.call('LLEN', pending), rows, dropped, cancels, -1 }
end

-- One question for all: most queues are neither paused nor limited.
local limits, gate = queue_prefix .. 'limits', nil
local is_plain = redis.call('EXISTS', paused, limits, queue_prefix .. 'limited') == 0
if not is_plain then
  if redis.call('EXISTS', paused) == 1 then return { now, lease_end, -1, rows, dropped, cancels, -1 } end
  if redis.call('EXISTS', limits) == 1 then
    -- include: lanes limits admission
    gate = admission(queue_prefix, now, now_up, nanoseconds)
  end
end
local length = redis.call('LLEN', pending)
expect(active, 'list')
expect(lease, 'zset')

-- A second entry of an id that already runs, waits or has ended elsewhere, where its state says it is.
local function is_elsewhere(id, state)
  if not state or state == 'pending' then return false end
  local set = state == 'active' and lease or queue_prefix .. state
  return type(redis.pcall('ZSCORE', set, id)) == 'string'
end

-- Read and sort out first, from the tail on; nothing is written before every key of the batch has been looked at.
wanted = tonumber(wanted)
if gate then
  local free, wait, is_told = gate.queue()
  if free <= 0 then
    if is_told then redis.call('SET', queue_prefix .. 'full', 1, 'PX', 60000) end
    return { now, lease_end, length, rows, dropped, cancels, wait }
  end
  wanted = math.min(wanted, free)
end
local taken, seen, expired, stubs = 0, gate and {}, {}, {}
local heads, strays, joining = {}, {}, {}

-- Whether it is this task's turn in its lane. One that stands in no lane (somebody ran it again) may begin a new one.
local function has_turn(order_key, id)
  local first = heads[order_key] or redis.pcall('ZRANGE', queue_prefix .. 'lane:' .. order_key, 0, 0)[1]
  if not first then
    first = id
    joining[#joining + 1] = { id, order_key }
  end
  heads[order_key] = first
  return first == id
end
local count, ids, keys, leases, locked = 0, {}, {}, {}, {}
for round = 1, 10 do
  if count >= wanted then break end
  local chunk = math.min(wanted - count, 1000)
  local tail = redis.call('LRANGE', pending, -taken - chunk, -taken - 1)
  if #tail == 0 then break end
  for i = #tail, 1, -1 do
    local id = tail[i]
    local key = task_prefix .. id
    local fields = read('HMGET', key, 'msg', 'state', 'expires_at', 'cancel', 'unique_key', 'order_key')
    local reason
    if fields.err then
      reason = 'wrongtype'
    elseif not fields[1] then
      reason = 'dangling'
      stubs[#stubs + 1] = key
    elseif (seen and seen[id]) or is_elsewhere(id, fields[2]) then
      reason = 'duplicate'
    elseif fields[3] and tonumber(fields[3]) <= now then
      reason = 'expired'
      expired[#expired + 1] = { id, key, fields[6] }
    end
    if seen then seen[id] = true end
    if reason then
      dropped[#dropped + 1] = id
      dropped[#dropped + 1] = reason
    elseif fields[6] and not has_turn(fields[6], id) then
      strays[#strays + 1] = { id, fields[6] }
    elseif not gate or fields[4] or gate.admits(id, key, fields[1]) then
      count = count + 1
      ids[count], keys[count] = id, key
      leases[2 * count - 1], leases[2 * count] = lease_end, id
      rows[2 * count - 1], rows[2 * count] = id, fields[1]
      if fields[5] then locked[#locked + 1] = { fields[5], id } end
      if fields[4] then
        cancels[#cancels + 1] = id
        cancels[#cancels + 1] = fields[4]
      end
    end
  end
  taken = taken + #tail
end

-- Drop second entries of an id within this batch. With limits they were seen above, before they could take up room.
local function drop_doubles()
  local met, kept = {}, 0
  for i = 1, count do
    local id = ids[i]
    if met[id] then
      dropped[#dropped + 1] = id
      dropped[#dropped + 1] = 'duplicate'
    else
      met[id], kept = true, kept + 1
      ids[kept], keys[kept] = id, keys[i]
      rows[2 * kept - 1], rows[2 * kept] = id, rows[2 * i]
    end
  end
  for i = kept + 1, count do ids[i], keys[i], rows[2 * i - 1], rows[2 * i] = nil, nil, nil, nil end
  count = kept
end

if taken > 0 or again == '1' then
  redis.call('SET', batch, number, 'PX', ARGV[7])
end
if taken > 0 then
  -- Only where not every lease is a new one can an id stand twice: to look for that each time would cost more than the
  -- leases themselves.
  if in_chunks('ZADD', lease, leases) < count then drop_doubles() end
  in_chunks('LPUSH', active, ids)
  redis.call('LTRIM', pending, 0, -taken - 1)
  local call, held = redis.call, held_by(owner, lease_end)
  for i = 1, count do
    local key = keys[i]
    call('HSET', key, 'state', 'active', 'held', held)
    if is_plain then call('HDEL', key, 'pending_since') else call('HDEL', key, 'pending_since', 'limited_by') end
  end
  for _, row in ipairs(locked) do keep_lock(row[1], row[2], lease_ms) end
  delete_all(stubs)
  if #expired + #strays + #joining > 0 then
    -- include: tell lanes
    for _, row in ipairs(expired) do
      local left = redis.call('HMGET', row[2], 'unique_key', 'waited')
      release(left[1], row[1])
      redis.call('DEL', row[2])
      tell(left[2], 'expired', row[2])
    end
    for _, row in ipairs(expired) do
      if row[3] then leave_lane(queue_prefix, row[3], row[1], nanoseconds) end
    end
    for _, row in ipairs(strays) do park(queue_prefix, row[1], nanoseconds) end
    for _, row in ipairs(joining) do join_lane(queue_prefix, row[2], row[1], now) end
    for _, row in ipairs(strays) do
      join_lane(queue_prefix, row[2], row[1], now)
      next_turn(queue_prefix, row[2], nanoseconds) -- its first may have ended without us
    end
  end
  if gate then gate.settle(lease_end) end
  local is_exact = not gate and #expired == 0 and #strays == 0 -- else others may have become pending meanwhile
  length = is_exact and length - taken or redis.call('LLEN', pending)
end
return { now, lease_end, length, rows, dropped, cancels, -1 }

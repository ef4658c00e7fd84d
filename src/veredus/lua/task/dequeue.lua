-- dequeue: hand out as many tasks as asked for, each active, leased and owned by this batch; what cannot be started now stays.
-- KEYS  pending paused active lease batch
-- ARGV  task_prefix wanted lease_ms owner number again batch_ttl_ms startable cursor loop_room thread_room process_room most_bytes for_go [now_ms]
-- RETURNS  {now_ms, lease end in s, still pending (-1: paused), {id, message, ...}, {dropped id, reason, ...},
--   {id, how to cancel it, ...}: those among the first that shall not be run but cancelled,
--   ms after which to ask again because the queue is at its limit, or -1,
--   tasks to be looked at behind the last one, {cursor of each pool}, {type passed over that this worker does not know, ...},
--   {id left for a Go server, its type, ...}}
-- include: clock checks chunks grow hold types
-- `batch` remembers the number of this worker's last batch. Asked again with a number already served (its reply was
-- lost, or an old request arrives after a newer one), the script hands out that same batch instead of a second one.
-- `startable` lists the types that the worker has handlers for, and in which pool each runs: \1type\0pool, and for patterns
-- \2prefix\0pool, the longest first; empty for every type. Pools: 1 loop, 2 thread, 3 process; `..._room` is how many more
-- each can start. `cursor` is a task that was passed over before: only tasks behind it are looked at. The cursor of a pool
-- that is returned is a task up to which nothing is left that this pool could start. No more than `most_bytes` of messages are
-- handed out at once, but always one task: a slow connection would need longer for more than their leases last. `for_go` says
-- which tasks are left for Go servers that serve this queue as well (include/for_go.lua); empty if there are none.
local pending, paused, active, lease, batch = unpack(KEYS)
local task_prefix, wanted, lease_ms, owner, number, again, batch_ttl, startable, cursor = unpack(ARGV)
local terms = ARGV[14]
local now, now_up, nanoseconds = clock(ARGV[15])
local queue_prefix = string.sub(task_prefix, 1, -3)
local lease_end = whole(math.ceil((now + tonumber(lease_ms)) / 1000))
local rows, dropped, cancels = {}, {}, {}
local SCAN = 1000 -- tasks that one call passes over, at most
local DEEPEST = 20000 -- tasks at the tail that are looked at; those behind them wait until some of these are gone
local MARK = '\0taken' -- stands for a task that leaves the middle of the list

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
      grow('ZADD', lease, lease_end, id)
      redis.call('HSET', key, 'held', held_by(owner, lease_end))
      if held[5] then keep_slots(queue_prefix, held[5], id, lease_end) end
      rows[#rows + 1] = id
      rows[#rows + 1] = redis.call('HGET', key, 'msg')
    end
  end
  local length = redis.call('LLEN', pending)
  return { now, lease_end, length, rows, dropped, cancels, -1, length, {}, {}, {} }
end

-- One question for all: most queues are neither paused nor limited.
local limits, gate = queue_prefix .. 'limits', nil
local is_plain = redis.call('EXISTS', paused, limits, queue_prefix .. 'limited') == 0
if not is_plain then
  if redis.call('EXISTS', paused) == 1 then return { now, lease_end, -1, rows, dropped, cancels, -1, 0, {}, {}, {} } end
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
local room = { tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]) }
wanted = math.min(tonumber(wanted), room[1] + room[2] + room[3])
if gate then
  local free, wait, is_told = gate.queue()
  if free <= 0 then
    if is_told then redis.call('SET', queue_prefix .. 'full', 1, 'PX', 60000) end
    return { now, lease_end, length, rows, dropped, cancels, wait, length, {}, {}, {} }
  end
  wanted = math.min(wanted, free)
end
local seen, expired, stubs, outdated = gate and {}, {}, {}, {}
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

-- The pool that starts this task, looked up once per type. ANY for what is no message: whoever takes it archives it. Mostly
-- the next task is of the same type, so that to compare how its message begins is enough.
local ANY, pools, unknown, sub = 0, {}, {}, string.sub
local pool, head, head_size = ANY, startable == '' and '', 0
local function look_up_pool(message)
  local task_type, last = type_in(message)
  if not task_type then
    pool, head = ANY, false
    return
  end
  pool, head, head_size = pools[task_type], sub(message, 1, last), last
  if pool == nil then
    pool = pool_for(startable, task_type)
    pools[task_type] = pool
    if not pool then unknown[#unknown + 1] = task_type end
  end
end

-- Where to begin, counted from the tail: behind the cursor, if it is still pending. Mostly it is near the head.
local looked = 0
if cursor ~= '' then
  local at = redis.call('LPOS', pending, cursor, 'MAXLEN', SCAN)
    or redis.call('LPOS', pending, cursor, 'RANK', -1, 'MAXLEN', DEEPEST + SCAN)
  if at then looked = length - at else cursor = '' end
end
local begun, passed, gone = looked, 0, nil
local cursors = { room[1] > 0 and cursor or '', room[2] > 0 and cursor or '', room[3] > 0 and cursor or '' }
local is_blocked = { room[1] == 0, room[2] == 0, room[3] == 0 }

-- The places of those that leave the list, counted from the tail: noted only where they do not all stand at the tail.
local function note_gone()
  gone = {}
  for at = begun, looked - 1 do gone[#gone + 1] = at end
end

-- Leave a task where it is. The cursor of every pool moves on to it, but not past a task that waits for room in that pool.
local function pass(id)
  if not gone then note_gone() end
  passed = passed + 1
  if pool then is_blocked[pool] = true end
  for i = 1, 3 do
    if not is_blocked[i] then cursors[i] = id end
  end
end

local left_for_go, is_for_go = {}, nil
if terms ~= '' then
  -- include: locks for_go
  is_for_go = rule_for_go(terms, now, left_for_go)
end

local count, ids, keys, leases, locked = 0, {}, {}, {}, {}
local bytes_left = tonumber(ARGV[13])
while count < wanted and passed < SCAN and looked < DEEPEST + wanted and looked - begun < SCAN + wanted do
  local chunk = passed > 0 and 100 or math.min(wanted - count, 1000)
  local tail = redis.call('LRANGE', pending, -looked - chunk, -looked - 1)
  if #tail == 0 then break end
  for i = #tail, 1, -1 do
    if count >= wanted or passed >= SCAN then break end
    local id = tail[i]
    local key = task_prefix .. id
    local fields = read('HMGET', key, 'msg', 'state', 'expires_at', 'cancel', 'unique_key', 'order_key')
    local reason
    local cancel = fields[4]
    if cancel then
      -- include: marks
      cancel = mark_for(key, fields[1] or '', cancel)
    end
    if fields.err then
      reason = 'wrongtype'
    elseif not fields[1] then
      reason = 'dangling'
      stubs[#stubs + 1] = key
    elseif (seen and seen[id]) or is_elsewhere(id, fields[2]) then
      reason = 'duplicate'
    elseif fields[3] and (tonumber(fields[3]) or math.huge) <= now then
      reason = 'expired'
      expired[#expired + 1] = { id, key, fields[6] }
    end
    if seen then seen[id] = true end
    local is_left = false
    if reason then
      dropped[#dropped + 1] = id
      dropped[#dropped + 1] = reason
    else
      if sub(fields[1], 1, head_size) ~= head then look_up_pool(fields[1]) end
      if not cancel and (not pool or room[pool] == 0) then
        is_left = true
        pass(id)
      elseif is_for_go and not cancel and pool ~= ANY and is_for_go(id, key, fields[1], looked) then
        is_left = true
        pass(id)
      elseif count > 0 and #fields[1] > bytes_left then
        wanted = count -- the rest is for the next call
        break
      elseif fields[6] and not has_turn(fields[6], id) then
        strays[#strays + 1] = { id, fields[6] }
      elseif not gate or cancel or gate.admits(id, key, fields[1]) then
        count = count + 1
        bytes_left = bytes_left - #fields[1]
        ids[count], keys[count] = id, key
        leases[2 * count - 1], leases[2 * count] = lease_end, id
        rows[2 * count - 1], rows[2 * count] = id, fields[1]
        if fields[5] then locked[#locked + 1] = { fields[5], id } end
        if cancel then
          cancels[#cancels + 1] = id
          cancels[#cancels + 1] = cancel
        elseif pool ~= ANY then
          room[pool] = room[pool] - 1
        end
        if fields[4] and not cancel then outdated[#outdated + 1] = key end
      end
    end
    if gone and not is_left then gone[#gone + 1] = looked end
    looked = looked + 1
  end
end
local taken = looked - begun - passed

-- Take what was looked at, and not passed over, out of pending: mostly one cut at the tail.
local function leave_pending()
  if begun == 0 and not gone then return redis.call('LTRIM', pending, 0, -taken - 1) end
  if not gone then note_gone() end
  for _, at in ipairs(gone) do redis.call('LSET', pending, -1 - at, MARK) end
  redis.call('LREM', pending, looked * 2 > length and #gone or -#gone, MARK)
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

local behind = looked < DEEPEST and length - looked or 0
if taken > 0 or again == '1' then
  grow('SET', batch, number, 'PX', batch_ttl)
end
if taken > 0 then
  -- Only where not every lease is a new one can an id stand twice: to look for that each time would cost more than the
  -- leases themselves.
  if in_chunks('ZADD', lease, leases) < count then drop_doubles() end
  in_chunks('LPUSH', active, ids)
  leave_pending()
  local call, held = redis.call, held_by(owner, lease_end)
  for i = 1, count do
    local key = keys[i]
    call('HSET', key, 'state', 'active', 'held', held)
    if is_plain then call('HDEL', key, 'pending_since') else call('HDEL', key, 'pending_since', 'limited_by') end
  end
  for _, row in ipairs(locked) do keep_lock(row[1], row[2], lease_ms) end
  delete_all(stubs)
  for _, key in ipairs(outdated) do call('HDEL', key, 'cancel', 'cancel_of') end
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
return { now, lease_end, length, rows, dropped, cancels, -1, behind, cursors, unknown, left_for_go }

-- dequeue: hand out as many tasks as asked for, each active, leased and owned by this batch; what cannot be started now stays.
-- KEYS  pending paused active lease batch
-- ARGV  queue_prefix wanted:number lease_ms:number owner number:number is_again:flag batch_ttl_ms startable cursor
--   loop_room:number thread_room:number process_room:number most_bytes:number for_go channel
-- RETURNS  {now_ms, lease end in s, still pending (-1: paused), {id, message, ...}, {dropped id, reason, ...},
--   {id, how to cancel it, ...}: those among the first that are not to be run but cancelled,
--   ms after which to ask again because the queue is at its limit, or -1,
--   tasks to be looked at behind the last one, {cursor of each pool}, {type passed over that this worker does not know, ...},
--   {id left for a Go server, its type, ...}, {ms for which each task was pending, -1 if unknown, ...},
--   1 if this worker is idle now}
-- NEEDS  clock checks chunks grow ownership types
-- `batch` remembers the number of this worker's last batch. Asked again with a number already served (its reply was
-- lost, or an old request arrives after a newer one), the script hands out that same batch instead of a second one.
-- `startable` lists the types that the worker has handlers for, and in which pool each runs: \1type\0pool, and for patterns
-- \2prefix\0pool, the longest first; empty for every type. Pools: 1 loop, 2 thread, 3 process; `..._room` is how many more
-- each can start. `cursor` is a task that was passed over before: only tasks behind it are looked at. The cursor of a pool
-- that is returned is a task up to which nothing is left that this pool could start. No more than `most_bytes` of messages are
-- handed out at once, but always one task: a slow connection would need longer for more than their leases last. `for_go` says
-- which tasks are left for Go servers that serve this queue as well (include/for_go.lua); empty if there are none.
-- `channel` is where this worker is woken: if the queue is empty then and it could take more, it is idle from here on. If tasks are
-- left that others may be able to start, one of those that are idle is woken (include/waking.lua). Empty: it is never idle.
-- The steps: repeat a batch; ask what is paused or limited; find where to begin; sort out tasks, from the tail of the list on;
-- activate the batch; settle waits, lanes and limits; wake the next worker. Nothing is written before all keys have been looked at.
-- Includes inside blocks are for what few queues have: limits, order keys, cancels. At the top they would
-- make a call for one task 12 % dearer, in instructions of the server.
local SCAN = 1000 -- tasks that one call passes over, at most
local DEEPEST = 20000 -- tasks at the tail that are looked at; those behind them wait until some of these are gone
local MARK = '\0taken' -- stands for a task that leaves the middle of the list
local now, now_up, nanoseconds = clock()
local lease_end = whole(math.ceil((now + lease_ms) / 1000))
local handed_out, dropped, cancels, unknown_types, left_for_go, waits = {}, {}, {}, {}, {}, {}
local is_idle = 0

local function reply(left, wait_ms, behind, cursors)
  return { now, lease_end, left, handed_out, dropped, cancels, wait_ms, behind, cursors, unknown_types, left_for_go, waits,
    is_idle }
end

-- add_pair: one more row of a flat list of two columns.
local function add_pair(list, first, second)
  local size = #list
  list[size + 1], list[size + 2] = first, second
end

---- Repeat a batch.
if tonumber(redis.call('GET', batch) or 0) >= number then
  -- include: limits
  local running = redis.call('LRANGE', active, 0, -1)
  for i = #running, 1, -1 do -- the first taken is the last in the list
    local id = running[i]
    local key = keys.task(id)
    local is_owned, message, cancel, slots = owned(key, lease, id, owner, 'msg', 'cancel', 'slots')
    if is_owned then
      if cancel then add_pair(cancels, id, cancel) end
      grow('ZADD', lease, lease_end, id)
      redis.call('HSET', key, 'held', held_by(owner, lease_end))
      if slots then keep_slots(queue_prefix, slots, id, lease_end) end
      add_pair(handed_out, id, message)
    end
  end
  local length = redis.call('LLEN', pending)
  return reply(length, -1, length, {})
end

---- Ask what is paused or limited: one question for all, as most queues are neither.
local is_plain, admission = redis.call('EXISTS', paused, keys.limits(), keys.limited()) == 0, nil
if not is_plain then
  if redis.call('EXISTS', paused) == 1 then return reply(-1, -1, 0, {}) end
  if redis.call('EXISTS', keys.limits()) == 1 then
    -- include: admission
    admission = open_admission(queue_prefix, now)
  end
end
local length = redis.call('LLEN', pending)
expect(active, 'list')
expect(lease, 'zset')

local room = { loop_room, thread_room, process_room }
wanted = math.min(wanted, loop_room + thread_room + process_room)
if admission then
  local free, wait_ms, is_woken = admission.room_in_queue(queue_prefix, admission)
  if free <= 0 then
    if is_woken then redis.call('SET', keys.full(), 1, 'PX', 60000) end
    return reply(length, wait_ms, length, {})
  end
  wanted = math.min(wanted, free)
end

---- Find where to begin, counted from the tail: behind the cursor, if it is still pending. Mostly it is near the head.
local looked = 0
if cursor ~= '' then
  local at = redis.call('LPOS', pending, cursor, 'MAXLEN', SCAN)
    or redis.call('LPOS', pending, cursor, 'RANK', -1, 'MAXLEN', DEEPEST + SCAN)
  if at then looked = length - at else cursor = '' end
end
local begun, passed, gone = looked, 0, nil
local cursors, is_blocked = {}, {}
for pool, free in ipairs(room) do
  cursors[pool], is_blocked[pool] = free > 0 and cursor or '', free == 0
end

---- Sort out tasks. First the questions that are asked of a task, then the loop that asks them.

-- note_gone: the places of tasks that leave the list, counted from the tail: noted only where they are not all at the tail.
local function note_gone()
  gone = {}
  for at = begun, looked - 1 do gone[#gone + 1] = at end
end

-- pass: leave a task where it is. The cursor of every pool moves on to it, but not past a task that waits for room in that pool.
local function pass(id, pool)
  if not gone then note_gone() end
  passed = passed + 1
  if pool then is_blocked[pool] = true end
  for i = 1, #cursors do
    if not is_blocked[i] then cursors[i] = id end
  end
end

-- find_pool: the pool that starts a task, found once per type. ANY for what is no message: the worker that takes it archives it.
-- Mostly the next task is of the same type, so that to compare how its message begins is enough.
local ANY, pools, sub = 0, {}, string.sub
local pool, head, head_size = ANY, startable == '' and '', 0
local function find_pool(message)
  local task_type, last = type_in(message)
  if not task_type then
    pool, head = ANY, false
    return
  end
  pool, head, head_size = pools[task_type], sub(message, 1, last), last
  if pool == nil then
    pool = pool_for(startable, task_type)
    pools[task_type] = pool
    if not pool then unknown_types[#unknown_types + 1] = task_type end
  end
end

-- is_elsewhere: a second entry of an id that already runs, waits or has ended, where its state says it is.
local function is_elsewhere(id, state)
  if not state or state == 'pending' then return false end
  local set = state == 'active' and lease or keys.container(state)
  return type(redis.pcall('ZSCORE', set, id)) == 'string'
end

-- has_turn: whether it is this task's turn in its lane. One that is in no lane (a person ran it again) may begin a new one.
local heads, strays, joining = {}, {}, {}
local function has_turn(order_key, id)
  local first = heads[order_key] or unpack(redis.pcall('ZRANGE', keys.lane(order_key), 0, 0), 1, 1)
  if not first then
    first = id
    joining[#joining + 1] = { id = id, order_key = order_key }
  end
  heads[order_key] = first
  return first == id
end

-- has_come: whether what a durable task waits for has come. If not, because an operator ran it early, it goes on waiting and
-- its handler does not run.
local asleep, woken = {}, {}
local function has_come(id, key, waiting)
  -- include: waits
  return is_wait_over(key, waiting, now)
end

local is_for_go
if for_go ~= '' then
  -- include: for_go
  is_for_go = rule_for_go(for_go, now, left_for_go)
end

local seen, expired, stub_keys, outdated_keys = admission and {}, {}, {}, {}
local count, ids, task_keys, leases, locked = 0, {}, {}, {}, {}

-- reason_to_drop: why a task cannot be handed out; nil if it can.
local function reason_to_drop(id, key, is_hash, message, state, expires_at, order_key)
  if not is_hash then return 'wrongtype' end
  if not message then
    stub_keys[#stub_keys + 1] = key
    return 'dangling'
  end
  if (seen and seen[id]) or is_elsewhere(id, state) then return 'duplicate' end
  if expires_at and (tonumber(expires_at) or math.huge) <= now then
    expired[#expired + 1] = { id = id, key = key, order_key = order_key }
    return 'expired'
  end
end

-- The loop asks in this order: is it to be dropped, can this worker start it, does it still wait, is it its turn, is there room?
local bytes_left, common_since, common_wait = most_bytes, false, -1
while count < wanted and passed < SCAN and looked < DEEPEST + wanted and looked - begun < SCAN + wanted do
  local chunk = passed > 0 and 100 or math.min(wanted - count, 1000)
  local tail = redis.call('LRANGE', pending, -looked - chunk, -looked - 1)
  if #tail == 0 then break end
  for i = #tail, 1, -1 do
    if count >= wanted or passed >= SCAN then break end
    local id = tail[i]
    local key, is_left = keys.task(id), false
    local fields = read('HMGET', key, 'msg', 'state', 'expires_at', 'cancel', 'unique_key', 'order_key', 'waiting',
      'pending_since')
    local message, state, expires_at, mark, unique_key, order_key, waiting, since = unpack(fields, 1, 8)
    local cancel = mark
    if mark then
      -- include: marks
      cancel = mark_for(key, message or '', mark)
    end
    local reason
    if expires_at or not message or seen or (state and state ~= 'pending') then -- mostly none of these
      reason = reason_to_drop(id, key, not fields.err, message, state, expires_at, order_key)
    end
    if seen then seen[id] = true end
    if reason then
      add_pair(dropped, id, reason)
    else
      if sub(message, 1, head_size) ~= head then find_pool(message) end
      if not cancel and (not pool or room[pool] == 0) then
        is_left = true
        pass(id, pool)
      elseif is_for_go and not cancel and pool ~= ANY and is_for_go(id, key, message, looked) then
        is_left = true
        pass(id, pool)
      elseif count > 0 and #message > bytes_left then
        wanted = count -- the rest is for the next call
        break
      elseif waiting and not cancel and not has_come(id, key, waiting) then
        asleep[#asleep + 1] = { id = id, waiting = waiting, unique_key = unique_key }
      elseif order_key and not has_turn(order_key, id) then
        strays[#strays + 1] = { id = id, order_key = order_key }
      elseif not admission or cancel or admission.admits(queue_prefix, admission, id, key, message) then
        count = count + 1
        bytes_left = bytes_left - #message
        ids[count], task_keys[count] = id, key
        leases[2 * count - 1], leases[2 * count] = lease_end, id
        handed_out[2 * count - 1], handed_out[2 * count] = id, message
        if since ~= common_since then -- many came together
          common_since, common_wait = since, since and now - (tonumber(sub(since, 1, -7)) or 0) or -1
        end
        waits[count] = common_wait
        if unique_key then locked[#locked + 1] = { id = id, unique_key = unique_key } end
        if cancel then
          add_pair(cancels, id, cancel)
        elseif pool ~= ANY then
          room[pool] = room[pool] - 1
        end
        if mark and not cancel then outdated_keys[#outdated_keys + 1] = key end
        if waiting then woken[#woken + 1] = { id = id, waiting = waiting } end
      end
    end
    if gone and not is_left then gone[#gone + 1] = looked end
    looked = looked + 1
  end
end
local taken = looked - begun - passed
local behind = looked < DEEPEST and length - looked or 0

---- Activate the batch.

-- leave_pending: take what was looked at, and not passed over, out of pending: mostly one cut at the tail.
local function leave_pending()
  if begun == 0 and not gone then return redis.call('LTRIM', pending, 0, -taken - 1) end
  if not gone then note_gone() end
  for _, at in ipairs(gone) do redis.call('LSET', pending, -1 - at, MARK) end
  redis.call('LREM', pending, looked * 2 > length and #gone or -#gone, MARK)
end

-- drop_repeats: drop second entries of an id within this batch. With limits they were seen above, before they took up room.
local function drop_repeats()
  local met, kept = {}, 0
  for i = 1, count do
    local id = ids[i]
    if met[id] then
      add_pair(dropped, id, 'duplicate')
    else
      met[id], kept = true, kept + 1
      ids[kept], task_keys[kept] = id, task_keys[i]
      handed_out[2 * kept - 1], handed_out[2 * kept], waits[kept] = id, handed_out[2 * i], waits[i]
    end
  end
  for i = kept + 1, count do
    ids[i], task_keys[i], handed_out[2 * i - 1], handed_out[2 * i], waits[i] = nil, nil, nil, nil, nil
  end
  count = kept
end

-- index_leases: of a sorted set with up to 128 short entries Redis reads half for each that is asked for, added or removed. Once it had a
-- long one it has an index, for as long as the key exists: with 100 tasks at once that saves a fifth of all instructions.
local function index_leases()
  if count < 8 or redis.pcall('OBJECT', 'ENCODING', lease) == 'skiplist' then return end
  local long = string.rep('-', 65)
  redis.call('ZADD', lease, 0, long)
  redis.call('ZREM', lease, long)
end

-- activate: the tasks of the batch are active, leased and owned.
local function activate()
  -- Only where not every lease is a new one can an id be there twice: to look for that each time would cost more than the
  -- leases themselves.
  if in_chunks('ZADD', lease, leases) < count then drop_repeats() end
  index_leases()
  in_chunks('LPUSH', active, ids)
  leave_pending()
  local call, held = redis.call, held_by(owner, lease_end)
  for i = 1, count do
    local key = task_keys[i]
    call('HSET', key, 'state', 'active', 'held', held)
    if is_plain then call('HDEL', key, 'pending_since') else call('HDEL', key, 'pending_since', 'limited_by') end
  end
  for _, task in ipairs(locked) do keep_lock(task.unique_key, task.id, lease_ms) end
  delete_all(stub_keys)
  for _, key in ipairs(outdated_keys) do call('HDEL', key, 'cancel', 'cancel_of') end
end

-- next_worker: this worker is idle, or one of those that are idle is woken for what is left.
local function next_worker(left)
  -- include: waking
  if left > 0 then
    wake(queue_prefix)
  elseif channel ~= '' and count < wanted then
    be_idle(queue_prefix, channel, now)
    is_idle = 1
  end
end

if taken > 0 or is_again then grow('SET', batch, whole(number), 'PX', batch_ttl_ms) end
if taken == 0 then
  next_worker(length)
  return reply(length, -1, behind, cursors)
end
activate()

---- Settle waits: a task that still waits is scheduled again; for one that was woken, nothing waits any more.
if #asleep + #woken > 0 then
  -- include: waits wakeup
  local before, first = earliest(keys.due(), keys.scheduled(), keys.retry()), nil
  for _, task in ipairs(asleep) do
    local at = set_aside(queue_prefix, task.id, task.waiting, task.unique_key, now)
    if at and (not first or at < first) then first = at end
  end
  announce(keys.delay_wakeup(), before, first, now)
  for _, task in ipairs(woken) do
    redis.call('HDEL', keys.task(task.id), 'waiting', 'front')
    redis.call('HSET', keys.task(task.id), 'woke', task.waiting) -- the handler tells how late it runs again
    redis.call('ZREM', keys.waits(), task.id)
  end
end

---- Settle lanes: expired tasks leave theirs, a task whose turn it is not waits in its lane, one that was in none joins it.
if #expired + #strays + #joining > 0 then
  -- include: notify_waiters lanes
  for _, task in ipairs(expired) do
    local unique_key, waited = unpack(redis.call('HMGET', task.key, 'unique_key', 'waited'), 1, 2)
    release(unique_key, task.id)
    redis.call('DEL', task.key)
    notify_waiters(waited, 'expired', task.key)
  end
  for _, task in ipairs(expired) do
    if task.order_key then leave_lane(queue_prefix, task.order_key, task.id, nanoseconds) end
  end
  for _, task in ipairs(strays) do park(queue_prefix, task.id, nanoseconds) end
  for _, task in ipairs(joining) do join_lane(queue_prefix, task.order_key, task.id, now) end
  for _, task in ipairs(strays) do
    join_lane(queue_prefix, task.order_key, task.id, now)
    next_turn(queue_prefix, task.order_key, nanoseconds) -- its first may have ended without us
  end
end

---- Settle limits, then wake the next worker.
if admission then admission.settle(queue_prefix, admission, lease_end, now_up, nanoseconds) end
local is_exact = not admission and #expired == 0 and #strays == 0 -- else others may have become pending
local left = is_exact and length - taken or redis.call('LLEN', pending)
next_worker(left)
return reply(left, -1, behind, cursors)

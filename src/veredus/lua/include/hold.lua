-- held_by: what `held` of an active task says: its owner, and the end of the lease that this owner wrote. The owner alone
-- is not enough: a Go worker that took the task over never clears our field, but it does write the lease; so the lease
-- must also be the one that we wrote.
local function held_by(owner, lease_end) return owner .. ':' .. lease_end end

-- is_ours: whether it was one of us who wrote this lease.
local function is_ours(held, lease_end)
  return held and string.sub(held, -#lease_end - 1) == ':' .. lease_end or false
end

-- owns: whether a task is held as given: what held_by says of its owner and of the lease that the lease set has now. If so,
-- it gives the fields read: [2] is the one asked for, or else who waits for the task; [3] is the unique lock, [4] the
-- order key, [5] the limits whose room the task takes up; without these three if `is_lean`.
local read = redis.pcall
local function owns(key, held, field, is_lean)
  local fields = is_lean and read('HMGET', key, 'held', field or 'waited')
    or read('HMGET', key, 'held', field or 'waited', 'unique_key', 'order_key', 'slots')
  return not fields.err and fields[1] == held and fields
end

-- holds: the same for one task of this owner, whose lease was not looked up yet.
local function holds(key, lease, id, owner, field)
  local lease_end = redis.call('ZSCORE', lease, id)
  return lease_end and owns(key, held_by(owner, lease_end), field)
end

-- lease_ends: the lease scores of all tasks in ARGV, by position, in few calls.
local function lease_ends(lease, first, width, count)
  if width == 1 and count <= 1000 then return redis.call('ZMSCORE', lease, unpack(ARGV, first, first + count - 1)) end
  local scores = {}
  for start = 1, count, 1000 do
    local ids = {}
    for i = start, math.min(start + 999, count) do ids[#ids + 1] = ARGV[first + (i - 1) * width] end
    for _, score in ipairs(redis.call('ZMSCORE', lease, unpack(ids))) do scores[#scores + 1] = score end
  end
  return scores
end

-- release: free a unique lock if this task still has it.
local function release(lock, id)
  if lock and lock ~= '' and redis.pcall('GET', lock) == id then redis.call('DEL', lock) end
end

-- keep_lock: while a task lives, its unique lock lives too: until so many milliseconds from now at least, and a minute
-- beyond, so that it outlasts the way to whoever keeps it next. One that has lapsed is taken again if it is free.
local function keep_lock(lock, id, ms)
  if not lock or lock == '' then return end
  local seconds = math.ceil(tonumber(ms) / 1000) + 60
  local holder = redis.pcall('GET', lock)
  if holder == id then
    local left = redis.call('TTL', lock)
    if left >= 0 and left < seconds then redis.call('EXPIRE', lock, seconds) end
  elseif not holder then
    redis.call('SET', lock, id, 'EX', seconds)
  end
end

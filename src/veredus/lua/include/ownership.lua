-- NEEDS  nothing

-- held_by: what `held` of an active task says: its owner, and the end of the lease that this owner wrote. The owner alone
-- is not enough: a Go worker that took the task over never clears our field, but it does write the lease; so the lease
-- must also be the one that we wrote.
local function held_by(owner, lease_end) return owner .. ':' .. lease_end end

-- owner_in: the owner that `held` names, if it was one of our workers that wrote this lease; else nil.
local function owner_in(held, lease_end)
  local owner, written = string.match(held or '', '^(.*):([^:]*)$')
  return written == lease_end and owner or nil
end

-- is_ours: whether one of our workers wrote this lease.
local function is_ours(held, lease_end) return owner_in(held, lease_end) ~= nil end

-- owned: whether this owner holds a task, and then the fields asked for, as in
-- `local is_owned, cancel = owned(key, lease, id, owner, 'cancel')`.
local read = redis.pcall
local function owned(key, lease, id, owner, ...)
  local lease_end = redis.call('ZSCORE', lease, id)
  if not lease_end then return false end
  local fields = read('HMGET', key, 'held', ...)
  local held = unpack(fields)  -- nil if the key is not a hash
  if held ~= held_by(owner, lease_end) then return false end
  return unpack(fields)
end

-- lease_ends: the lease scores of all tasks in the rows of ARGV, by position, in few calls. The ids are in the first column.
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

-- keep_lock: while a task lives, its unique lock lives too: for at least this many milliseconds, and a minute beyond, so that
-- it outlasts the way to the process that keeps it next. One that has lapsed is taken again if it is free.
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

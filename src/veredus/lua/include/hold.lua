-- holds: whether this owner still has this task. The owner alone is not enough: a Go worker that took the task over
-- never clears our fields, but it does write the lease; so the lease must also be the one that we wrote.
local function holds(key, lease, id, owner)
  local fields = redis.pcall('HMGET', key, 'owner', 'until')
  if fields.err or fields[1] ~= owner or not fields[2] then return false end
  return fields[2] == redis.call('ZSCORE', lease, id)
end

-- release: free a unique lock if this task still has it.
local function release(lock, id)
  if lock and lock ~= '' and redis.pcall('GET', lock) == id then redis.call('DEL', lock) end
end

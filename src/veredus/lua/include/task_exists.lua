-- NEEDS  nothing

-- is_late_result: whether this hash holds a result alone: a Go handler that stood still wrote it after its task was gone.
local function is_late_result(key)
  return redis.pcall('HLEN', key) == 1 and redis.call('HEXISTS', key, 'result') == 1
end

-- task_exists: whether there is a task with this key. A late result is none, and is removed, or it would take the id for ever.
local function task_exists(key)
  if redis.call('EXISTS', key) == 0 then return false end
  if is_late_result(key) then
    redis.call('DEL', key)
    return false
  end
  return true
end

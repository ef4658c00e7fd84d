-- NEEDS  nothing

-- task_exists: whether there is a task with this key. A hash that holds a result alone is none: a Go handler that stood still wrote
-- it after its task was gone. Such a hash is removed, or it would take the id for ever.
local function task_exists(key)
  if redis.call('EXISTS', key) == 0 then return false end
  if redis.pcall('HLEN', key) == 1 and redis.call('HEXISTS', key, 'result') == 1 then
    redis.call('DEL', key)
    return false
  end
  return true
end

-- NEEDS  nothing

-- read_task: fields of a task by name, as in read_task(key, 'state', 'order_key').state; nil if the key is no hash.
local function read_task(key, ...)
  local values = redis.pcall('HMGET', key, ...)
  if values.err then return nil end
  local task = {}
  for i, name in ipairs({ ... }) do task[name] = values[i] or nil end
  return task
end

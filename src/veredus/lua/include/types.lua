-- NEEDS  nothing

-- type_in: a task's type, which is the first field of its message, as Go always writes it, and where it ends; nil if that is
-- not a message.
local function type_in(message)
  local tag, size = string.byte(message, 1, 2)
  if tag ~= 10 or not size then return nil end
  local at = 3
  if size > 127 then -- longer than one byte can say: the lower seven bits of each byte, the last one below 128
    local scale, byte = 128, nil
    size = size - 128
    repeat
      byte = string.byte(message, at) or 0
      size, scale, at = size + byte % 128 * scale, scale * 128, at + 1
    until byte < 128 or at > 6
  end
  local last = at + size - 1
  if last > #message then return nil end
  return string.sub(message, at, last), last
end

-- pool_for: where the worker runs tasks of this type, by the list that it sent; false if it has no handler for them.
local function pool_for(startable, task_type)
  if not string.find(task_type, '[%z\1\2]') then
    local _, last = string.find(startable, '\1' .. task_type .. '\0', 1, true)
    if last then return tonumber(string.sub(startable, last + 1, last + 1)) end
  end
  for prefix, pool in string.gmatch(startable, '\2([^%z]*)%z(%d)') do
    if string.sub(task_type, 1, #prefix) == prefix then return tonumber(pool) end
  end
  return false
end

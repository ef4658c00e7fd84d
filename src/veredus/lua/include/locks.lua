-- varint: the number of protobuf's variable length at a place, and the place behind it; nil at the end of the data.
local function varint(data, at)
  local value, scale = 0, 1
  while true do
    local byte = string.byte(data, at)
    if not byte then return nil end
    value, at = value + byte % 128 * scale, at + 1
    if byte < 128 then return value, at end
    scale = scale * 128
  end
end

-- lock_in: the unique lock that a message names, its field 10: Go keeps it nowhere else for the tasks of a group.
local function lock_in(data)
  local at, tag, size = 1, nil, nil
  while at and at <= #data do
    tag, at = varint(data, at)
    if not tag then return '' end
    if tag % 8 == 0 then
      tag, at = varint(data, at)
    elseif tag % 8 == 2 then
      size, at = varint(data, at)
      if not size then return '' end
      if tag == 82 then return string.sub(data, at, at + size - 1) end
      at = at + size
    else
      return ''
    end
  end
  return ''
end

-- lock_of: the unique lock of a task, or '' for none. Only a name under the queue's own prefix is believed.
local function lock_of(key, field, group)
  local lock = field
  if not lock and group then
    local data = redis.call('HGET', key, 'msg')
    lock = data and lock_in(data)
  end
  local prefix = queue_prefix .. 'unique:'
  return lock and string.sub(lock, 1, #prefix) == prefix and lock or ''
end

-- NEEDS  nothing

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

-- field_in: the value of a message's field, given by its tag: a number or a text; nil without the field.
local function field_in(data, wanted)
  local at, tag, value = 1, nil, nil
  while at and at <= #data do
    tag, at = varint(data, at)
    if not tag then return nil end
    value, at = varint(data, at)
    if not value then return nil end
    if tag % 8 == 2 then
      if tag == wanted then return string.sub(data, at, at + value - 1) end
      at = at + value
    elseif tag % 8 ~= 0 then
      return nil
    elseif tag == wanted then
      return value
    end
  end
  return nil
end

-- lock_in: the unique lock that a message names, its field 10: Go keeps it nowhere else for the tasks of a group.
local function lock_in(data) return field_in(data, 82) or '' end

-- lock_of: the unique lock of a task, or '' for none. Only a name under the queue's own prefix is believed.
local function lock_of(key, field, group)
  local lock = field
  if not lock and group then
    local data = redis.call('HGET', key, 'msg')
    lock = data and lock_in(data)
  end
  return lock and string.find(lock, keys.unique_prefix(), 1, true) == 1 and lock or ''
end

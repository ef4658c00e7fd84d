-- NEEDS  nothing

-- in_chunks: call a command for many members, never with more arguments than Lua can unpack. Returns the sum of what the
-- calls return, which is the number of new or removed members, or the length of a list and then of no use.
local function in_chunks(command, key, members)
  local sum = 0
  for first = 1, #members, 1000 do
    sum = sum + redis.call(command, key, unpack(members, first, math.min(first + 999, #members)))
  end
  return sum
end

-- delete_all: delete many keys.
local function delete_all(keys)
  for first = 1, #keys, 1000 do
    redis.call('DEL', unpack(keys, first, math.min(first + 999, #keys)))
  end
end

-- any_exists: whether any of these keys is there.
local function any_exists(keys)
  for first = 1, #keys, 1000 do
    if redis.call('EXISTS', unpack(keys, first, math.min(first + 999, #keys))) > 0 then return true end
  end
  return false
end

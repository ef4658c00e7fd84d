-- NEEDS  nothing

-- first_of: the first member of a sorted set and its score as a number; nothing if it is empty or no sorted set.
local function first_of(set)
  local found = redis.pcall('ZRANGE', set, 0, 0, 'WITHSCORES')
  if found.err then return nil end
  local id, score = unpack(found, 1, 2)
  return id, tonumber(score)
end

-- has_member: whether an id is in a sorted set; false if the key is no sorted set.
local function has_member(set, id) return type(redis.pcall('ZSCORE', set, id)) == 'string' end

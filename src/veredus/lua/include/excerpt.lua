-- NEEDS  nothing

-- excerpt: the entries of a log from a seq on: at most this number and these bytes, but at least one if there is any.
local function excerpt(list, floor, first, most, max_bytes)
  if most <= 0 then return {} end
  local entries = redis.call('LRANGE', list, first - floor - 1, first - floor + most - 2)
  local bytes = 0
  for i = 1, #entries do
    bytes = bytes + #entries[i]
    if bytes > max_bytes and i > 1 then
      local some = {}
      for n = 1, i - 1 do some[n] = entries[n] end
      return some
    end
  end
  return entries
end

-- is_answered: whether a request has had its response: it is recorded so, or the client has said to have seen it.
local function is_answered(s, rid, state)
  if state then return string.sub(state, 1, 1) == 'D' end
  return tonumber(rid) <= tonumber(redis.call('HGET', s.base .. 'm', 'rf') or 0)
end

-- arrival_mark: what the record of an accepted request says of the frame that brought it; nothing for arrival 0.
local function arrival_mark(generation, arrival)
  return arrival == '0' and '' or ':' .. generation .. ':' .. arrival
end

-- is_marked: whether the record was made for the frame with this mark.
local function is_marked(state, mark) return mark ~= '' and string.sub(state, -#mark) == mark end

-- release_held: take away what is bound to a request. `wanted` says what becomes of each item by its two flags (late,
-- on_fail); returns the kept ones of either side as {tail, expiry}, and the number of the others.
local function release_held(s, rid, wanted)
  local kept, dropped, count, bytes = { B = {}, C = {} }, 0, 0, 0
  for _, side in ipairs({ 'B', 'C' }) do
    local key = s.base .. side .. ':' .. rid
    for _, item in ipairs(redis.call('LRANGE', key, 0, -1)) do
      local tail, list = string.sub(item, 11), kept[side]
      count, bytes = count + 1, bytes + #tail
      if wanted(string.sub(item, 1, 1), string.sub(item, 2, 2)) then
        list[#list + 1] = { tail, (struct.unpack('>I8', item, 3)) }
      else
        dropped = dropped + 1
      end
    end
    redis.call('DEL', key)
  end
  if count > 0 then
    redis.call('HINCRBY', s.base .. 'm', 'hb', -count)
    redis.call('HINCRBY', s.base .. 'm', 'hy', -bytes)
  end
  return kept.B, kept.C, dropped
end

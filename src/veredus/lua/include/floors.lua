-- raise_rid_floor: the client has seen every answer up to this request: what is recorded of those that are answered is forgotten.
local function raise_rid_floor(s, floor)
  local before = tonumber(redis.call('HGET', s.base .. 'm', 'rf') or 0)
  if floor <= before then return end
  local requests, over, open, told = redis.call('HGETALL', s.base .. 'r'), {}, {}, {}
  for i = 1, #requests, 2 do
    if string.sub(requests[i + 1], 1, 1) ~= 'D' then
      open[requests[i]] = true
    elseif tonumber(requests[i]) <= floor then
      over[#over + 1] = requests[i]
    end
  end
  for _, rid in ipairs(redis.call('HKEYS', s.base .. 'n')) do
    if (tonumber(rid) or 0) <= floor and not open[rid] then told[#told + 1] = rid end
  end
  in_chunks('HDEL', s.base .. 'r', over)
  in_chunks('HDEL', s.base .. 'n', told)
  redis.call('HSET', s.base .. 'm', 'rf', floor)
end

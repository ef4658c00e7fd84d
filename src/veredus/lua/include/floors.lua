-- raise_rid_floor: the client has seen every answer up to this request: what is recorded of them is forgotten.
local function raise_rid_floor(s, floor)
  local before = tonumber(redis.call('HGET', s.base .. 'm', 'rf') or 0)
  if floor <= before then return end
  local requests, over = redis.call('HGETALL', s.base .. 'r'), {}
  for i = 1, #requests, 2 do
    if tonumber(requests[i]) <= floor and string.sub(requests[i + 1], 1, 1) == 'D' then over[#over + 1] = requests[i] end
  end
  in_chunks('HDEL', s.base .. 'r', over)
  redis.call('HSET', s.base .. 'm', 'rf', floor)
end

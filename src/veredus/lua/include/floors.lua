-- NEEDS  checks chunks request_records

-- check_records: stop before the first write when a key that `raise_rid_floor` changes has a wrong type.
local function check_records(base)
  expect(session_keys.requests(base), 'hash')
  expect(session_keys.told(base), 'hash')
end

-- raise_rid_floor: the client has seen every answer up to this request: delete the records of those that are answered.
local function raise_rid_floor(s, floor)
  local meta, records, notified =
    session_keys.meta(s.base), session_keys.requests(s.base), session_keys.told(s.base)
  local before = tonumber(redis.call('HGET', meta, field.REQUEST_FLOOR) or 0) or 0
  if floor <= before then return end
  local pairs_found, answered, open, over = redis.call('HGETALL', records), {}, {}, {}
  for i = 1, #pairs_found, 2 do
    local rid, record = pairs_found[i], pairs_found[i + 1]
    if kind_of(record) ~= 'answered' then
      open[rid] = true
    elseif (tonumber(rid) or 0) <= floor then
      answered[#answered + 1] = rid
    end
  end
  for _, rid in ipairs(redis.call('HKEYS', notified)) do
    if (tonumber(rid) or 0) <= floor and not open[rid] then over[#over + 1] = rid end
  end
  in_chunks('HDEL', records, answered)
  in_chunks('HDEL', notified, over)
  redis.call('HSET', meta, field.REQUEST_FLOOR, floor)
end

-- accept: record requests as accepted, each at most once, for the connection that has the session.
-- KEYS  sessions
-- ARGV  max_open:number max_records:number ROWS sid rid deadline_ms generation arrival
-- RETURNS  per row: new, open (accepted before), done (answered), full (too many), superseded (another connection has the session) or gone
-- NEEDS  binding floors log request_records
-- `arrival` is the number of the request's arrival on its connection, 0 for none: asked again for the same arrival, because
-- the reply was lost, the answer is the same.
-- A client need not acknowledge answers: with `max_records` records, requests far below this one count as acknowledged.
for i, sid in rows() do
  local s = look_up(sid)
  if s then
    redis.call('HLEN', session_keys.requests(s.base))
    redis.call('ZCARD', session_keys.deadlines(s.partition))
  end
end

-- has_place: whether one more request can be recorded, at the latest after old ones were forgotten.
local function has_place(s, rid)
  local requests = session_keys.requests(s.base)
  if redis.call('HLEN', requests) < max_records then return true end
  raise_rid_floor(s, rid - math.floor(max_records / 2))
  return redis.call('HLEN', requests) < max_records
end

-- accept: record one request; what the script returns for its row.
local function accept(s, rid, deadline_ms, generation, arrival)
  local meta, requests = session_keys.meta(s.base), session_keys.requests(s.base)
  local current, open = unpack(redis.call('HMGET', meta, field.GENERATION, field.OPEN_REQUESTS))
  if current ~= generation then return 'superseded' end
  local record, mark = redis.call('HGET', requests, rid), arrival_mark(generation, arrival)
  if kind_of(record) == 'accepted' then return is_marked(record, mark) and 'new' or 'open' end
  if is_answered(s, rid, record) then return 'done' end
  if tonumber(open or 0) >= max_open or not has_place(s, tonumber(rid)) then return 'full' end
  local name = request_name(s.sid, rid)
  if record then redis.call('ZREM', session_keys.early_binds(s.partition), name) end
  redis.call('HSET', requests, rid, 'A:' .. deadline_ms .. mark)
  redis.call('ZADD', session_keys.deadlines(s.partition), deadline_ms, name)
  redis.call('HINCRBY', meta, field.OPEN_REQUESTS, 1)
  return 'new'
end

local replies = {}
for i, sid, rid, deadline_ms, generation, arrival in rows() do
  local s = look_up(sid)
  replies[i] = s and accept(s, rid, deadline_ms, generation, arrival) or 'gone'
end
return replies

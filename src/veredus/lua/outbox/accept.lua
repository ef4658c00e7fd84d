-- accept: record requests as accepted, each at most once, for the connection that has the session.
-- KEYS  partition
-- ARGV  channel max_open max_records count {sid rid deadline generation arrival}* [now_ms]
-- RETURNS  per row: new, open (accepted before), done (answered), full (too many), superseded (another connection has the session) or gone
-- include: chunks log binding floors
-- `arrival` is the number of the request's arrival on its connection, 0 for none: asked again for the same arrival, because
-- the reply was lost, the answer is the same.
-- A client need not say which answers it has seen: with `max_records` of them, numbers far below this one count as seen.
local max_open, max_records, count = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = moment(ARGV[5 + count * 5])
for i = 1, count do
  local s = look_up(ARGV[i * 5], now)
  if s then
    redis.call('HLEN', s.base .. 'r')
    redis.call('ZCARD', partition_of(s.sid) .. 'dl')
  end
end

-- has_place: whether one more request can be recorded, at the latest after old ones were forgotten.
local function has_place(s, rid)
  if redis.call('HLEN', s.base .. 'r') < max_records then return true end
  raise_rid_floor(s, rid - math.floor(max_records / 2))
  return redis.call('HLEN', s.base .. 'r') < max_records
end

local replies = {}
for i = 1, count do
  local sid, rid, deadline, generation, arrival = unpack(ARGV, i * 5, i * 5 + 4)
  local s = look_up(sid, now)
  local m = s and redis.call('HMGET', s.base .. 'm', 'g', 'op')
  if not s then
    replies[i] = 'gone'
  elseif m[1] ~= generation then
    replies[i] = 'superseded'
  else
    local state, mark = redis.call('HGET', s.base .. 'r', rid), arrival_mark(generation, arrival)
    if state and string.sub(state, 1, 1) == 'A' then
      replies[i] = is_marked(state, mark) and 'new' or 'open'
    elseif is_answered(s, rid, state) then
      replies[i] = 'done'
    elseif tonumber(m[2] or 0) >= max_open or not has_place(s, tonumber(rid)) then
      replies[i] = 'full'
    else
      local member, partition = sid .. '.' .. rid, partition_of(sid)
      if state then redis.call('ZREM', partition .. 'bd', member) end
      redis.call('HSET', s.base .. 'r', rid, 'A:' .. deadline .. mark)
      redis.call('ZADD', partition .. 'dl', deadline, member)
      redis.call('HINCRBY', s.base .. 'm', 'op', 1)
      replies[i] = 'new'
    end
  end
end
return replies

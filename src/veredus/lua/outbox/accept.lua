-- accept: record requests as accepted, each at most once, for the connection that has the session.
-- KEYS  partition
-- ARGV  channel max_open max_records count {sid rid deadline generation}* [now_ms]
-- RETURNS  per row: new, open (accepted before), done (answered), full (too many) or gone
-- include: log binding
local max_open, max_records, count = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = moment(ARGV[5 + count * 4])
for i = 1, count do
  local s = look_up(ARGV[i * 4 + 1], now)
  if s then
    redis.call('HLEN', s.base .. 'r')
    redis.call('ZCARD', partition_of(s.sid) .. 'dl')
  end
end

local replies = {}
for i = 1, count do
  local sid, rid, deadline, generation = unpack(ARGV, i * 4 + 1, i * 4 + 4)
  local s = look_up(sid, now)
  local m = s and redis.call('HMGET', s.base .. 'm', 'g', 'op')
  if not s or m[1] ~= generation then
    replies[i] = 'gone'
  else
    local state = redis.call('HGET', s.base .. 'r', rid)
    if state and string.sub(state, 1, 1) == 'A' then
      replies[i] = 'open'
    elseif is_answered(s, rid, state) then
      replies[i] = 'done'
    elseif tonumber(m[2] or 0) >= max_open or redis.call('HLEN', s.base .. 'r') >= max_records then
      replies[i] = 'full'
    else
      local member, partition = sid .. '.' .. rid, partition_of(sid)
      if state then redis.call('ZREM', partition .. 'bd', member) end
      redis.call('HSET', s.base .. 'r', rid, 'A:' .. deadline)
      redis.call('ZADD', partition .. 'dl', deadline, member)
      redis.call('HINCRBY', s.base .. 'm', 'op', 1)
      replies[i] = 'new'
    end
  end
end
return replies

-- check: move the oldest members of groups that are ripe into aggregation sets, one set for each such group.
-- KEYS  sets groups
-- ARGV  queue_prefix set_ms:number limit:number most:number
--   ROWS group set_id max_size:number max_delay_ms:number grace_ms:number
-- RETURNS  {now_ms, {code, due, ...}}, two numbers per group: 1 a set was made, 0 not ripe, -1 it had no members, -2 its key
--   is no sorted set, 2 left alone because `limit` sets were made; and when it is (or the rest is) ripe in ms, or -1
-- NEEDS  clock checks chunks arrival grow
-- Ripe: by size, by the age of the oldest, or because nobody joined for the grace period; 0 switches the first two off.
-- A member that joined more than a minute in the future shows that the server's clock was set back, or was written by another
-- program: its group is ripe, or it would wait for the clock. `most` bounds a set without a size. Asked again with a set that was made, it answers 1 again: a lost reply costs nothing.
local now = clock()
local AHEAD = 60000 -- clocks of Go's clients may differ by so much
local BURST = 2000 -- members of one second that are looked at when a cut goes through it
expect(sets, 'zset')
expect(groups, 'set')

local function score_at(key, rank)
  local _, score = unpack(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES'), 1, 2)
  return tonumber(score)
end

local function ripe_at(key, size, max_size, max_delay, grace)
  if max_size > 0 and size >= max_size then return now end
  local newest = score_at(key, -1) * 1000
  if newest > now + AHEAD then return now end
  local at = newest + grace
  if max_delay > 0 then at = math.min(at, score_at(key, 0) * 1000 + max_delay) end
  return at
end

-- Where the cut goes through a second, its members are chosen by arrival; ranks know only their ids.
local function oldest(key, number, size)
  local members = redis.call('ZRANGE', key, 0, number - 1, 'WITHSCORES')
  if number >= size or score_at(key, number) ~= tonumber(members[#members]) then return members end
  local last, cut = members[#members], 0
  while #members > 0 and members[#members] == last do
    members[#members], cut = nil, cut + 1
    members[#members] = nil
  end
  local same = {}
  local ids = redis.call('ZRANGEBYSCORE', key, last, last, 'LIMIT', 0, math.max(BURST, cut))
  for i, id in ipairs(ids) do
    local seq = redis.pcall('HGET', keys.task(id), 'group_seq')
    same[i] = { id = id, score = last, seq = type(seq) == 'string' and seq or nil }
  end
  by_arrival(same)
  for i = 1, cut do
    members[#members + 1] = same[i].id
    members[#members + 1] = last
  end
  return members
end

local function stage(key, set, number, size)
  local members, ids, scored = oldest(key, number, size), {}, {}
  for i = 1, #members, 2 do
    ids[#ids + 1] = members[i]
    scored[i], scored[i + 1] = members[i + 1], members[i]
  end
  may_grow(set)
  in_chunks('ZADD', set, scored)
  redis.call('ZADD', sets, whole(math.ceil((now + set_ms) / 1000)), set)
  in_chunks('ZREM', key, ids)
end

local answers, made = {}, 0
for i, group, set_id, max_size, max_delay_ms, grace_ms in rows() do
  local key, set = keys.group(group), keys.aggregation_set(group, set_id)
  local code, due = 0, -1
  local size = redis.pcall('ZCARD', key)
  if type(size) ~= 'number' then
    code = -2
  elseif redis.call('ZSCORE', sets, set) then
    code, made = 1, made + 1
  elseif size == 0 then
    code = -1
    redis.call('SREM', groups, group)
  elseif made >= limit then
    code = 2
  elseif ripe_at(key, size, max_size, max_delay_ms, grace_ms) <= now then
    code, made = 1, made + 1
    stage(key, set, math.min(max_size > 0 and max_size or most, size), size)
    size = redis.call('ZCARD', key)
    if size == 0 then redis.call('SREM', groups, group) end
  end
  if code >= 0 and size > 0 then due = ripe_at(key, size, max_size, max_delay_ms, grace_ms) end
  answers[#answers + 1] = code
  answers[#answers + 1] = due
end
return { now, answers }

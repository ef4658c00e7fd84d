-- check: move the oldest members of groups that are ripe into aggregation sets, one set for each such group.
-- KEYS  sets groups
-- ARGV  task_prefix group_prefix set_ms limit most count {group set_id max_size max_delay_ms grace_ms}* [now_ms]
-- RETURNS  {now_ms, {code, due, ...}}, two numbers per group: 1 a set was made, 0 not ripe, -1 it had no members, -2 its key
--   is no sorted set, 2 left alone because `limit` sets were made; and when it is (or the rest is) ripe in ms, or -1
-- include: clock checks chunks arrival grow
-- Ripe: by size, by the age of the oldest, or because nobody joined for the grace period; 0 switches the first two off.
-- `most` bounds a set without a size. Asked again with a set that was made, it answers 1 again: a lost reply costs nothing.
local sets, groups = unpack(KEYS)
local task_prefix, group_prefix, set_ms, limit, most = unpack(ARGV, 1, 5)
local count = tonumber(ARGV[6])
local now = clock(ARGV[7 + count * 5])
local BURST = 2000 -- members of one second that are looked at when a cut goes through it
expect(sets, 'zset')
expect(groups, 'set')

local function end_score(key, rank) return tonumber(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2]) end

local function ripe_at(key, size, max_size, max_delay, grace)
  if max_size > 0 and size >= max_size then return now end
  local at = end_score(key, -1) * 1000 + grace
  if max_delay > 0 then at = math.min(at, end_score(key, 0) * 1000 + max_delay) end
  return at
end

-- Where the cut goes through a second, its members are chosen by arrival; ranks know only their ids.
local function oldest(key, number, size)
  local rows = redis.call('ZRANGE', key, 0, number - 1, 'WITHSCORES')
  if number >= size or redis.call('ZRANGE', key, number, number, 'WITHSCORES')[2] ~= rows[#rows] then return rows end
  local last, cut = rows[#rows], 0
  while #rows > 0 and rows[#rows] == last do
    rows[#rows], cut = nil, cut + 1
    rows[#rows] = nil
  end
  local same = {}
  local ids = redis.call('ZRANGEBYSCORE', key, last, last, 'LIMIT', 0, math.max(BURST, cut))
  for i, id in ipairs(ids) do
    local seq = redis.pcall('HGET', task_prefix .. id, 'group_seq')
    same[i] = { id, last, type(seq) == 'string' and seq or nil }
  end
  by_arrival(same)
  for i = 1, cut do
    rows[#rows + 1] = same[i][1]
    rows[#rows + 1] = last
  end
  return rows
end

local function stage(key, set, number, size)
  local rows, ids, scored = oldest(key, number, size), {}, {}
  for i = 1, #rows, 2 do
    ids[#ids + 1] = rows[i]
    scored[i], scored[i + 1] = rows[i + 1], rows[i]
  end
  may_grow(set)
  in_chunks('ZADD', set, scored)
  redis.call('ZADD', sets, whole(math.ceil((now + tonumber(set_ms)) / 1000)), set)
  in_chunks('ZREM', key, ids)
end

local answers, made = {}, 0
limit, most = tonumber(limit), tonumber(most)
for i = 1, count do
  local group, set_id, max_size, max_delay, grace = unpack(ARGV, i * 5 + 2, i * 5 + 6)
  max_size, max_delay, grace = tonumber(max_size), tonumber(max_delay), tonumber(grace)
  local key, code, due = group_prefix .. group, 0, -1
  local set = key .. ':' .. set_id
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
  elseif ripe_at(key, size, max_size, max_delay, grace) <= now then
    code, made = 1, made + 1
    stage(key, set, math.min(max_size > 0 and max_size or most, size), size)
    size = redis.call('ZCARD', key)
    if size == 0 then redis.call('SREM', groups, group) end
  end
  if code >= 0 and size > 0 then due = ripe_at(key, size, max_size, max_delay, grace) end
  answers[#answers + 1] = code
  answers[#answers + 1] = due
end
return { now, answers }

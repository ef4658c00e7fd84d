-- record: add what a worker counted of task types and of errors, per minute and per hour, once.
-- KEYS  recorded errors
-- ARGV  queue_prefix number:number memory_ms minutes_kept:number hours_kept:number most_types:number most_groups:number others
--   ROWS(types) minute:number task_type processed:number failed:number run wait
--   ROWS(groups) minute:number group_id amount:number at error
-- RETURNS  1 if it was added, 0 if that had been done before
-- NEEDS  clock
-- A worker numbers its records and sends one again until it is answered: `recorded` has the last number that was added.
-- Everything is read before the first write. All keys expire by themselves and hold a limited number of names.
if tonumber(redis.call('GET', recorded) or 0) >= number then return 0 end
local fields, sizes, expiries = {}, {}, {}

-- known_in: the fields of a key that this call will write, with their new values.
local function known_in(key, expiry)
  if not fields[key] then
    fields[key], expiries[key] = {}, expiry
    sizes[key] = redis.call('HLEN', key) -- refuses a wrong type before the first write
  end
  return fields[key]
end

-- value_of: what a field has now, or will have.
local function value_of(key, name) return fields[key][name] or redis.call('HGET', key, name) end

-- fitting: the field for a name, or that of the others if the key has no room for one more name.
local function fitting(key, span, name, most)
  local field = span .. ' ' .. name
  if value_of(key, field) then return field end
  if sizes[key] >= most then return span .. ' ' .. others end
  sizes[key] = sizes[key] + 1
  return field
end

-- sum_durations: two counts of durations as one: `total bucket:count ...`.
local function sum_durations(first, second)
  local total, counts, order = 0, {}, {}
  for _, text in ipairs({ first, second }) do
    total = total + (tonumber(string.match(text, '^%d+')) or 0)
    for bucket, count in string.gmatch(text, '(%-?%d+):(%d+)') do
      if not counts[bucket] then order[#order + 1] = bucket end
      counts[bucket] = (counts[bucket] or 0) + tonumber(count)
    end
  end
  local parts = { whole(total) }
  for _, bucket in ipairs(order) do parts[#parts + 1] = bucket .. ':' .. whole(counts[bucket]) end
  return table.concat(parts, ' ')
end

local function add_counts(key, expiry, span, task_type, most, processed, failed, run, wait)
  local known = known_in(key, expiry)
  local field = fitting(key, span, task_type, most)
  local before = value_of(key, field) or '0 0|0|0'
  local p, f, run_before, wait_before = string.match(before, '^(%d+) (%d+)|([^|]*)|([^|]*)$')
  known[field] = whole((tonumber(p) or 0) + processed) .. ' ' .. whole((tonumber(f) or 0) + failed)
    .. '|' .. sum_durations(run_before or '0', run) .. '|' .. sum_durations(wait_before or '0', wait)
end

local function add_number(key, expiry, span, name, most, count)
  local known = known_in(key, expiry)
  local field = fitting(key, span, name, most)
  known[field] = whole((tonumber(value_of(key, field) or 0) or 0) + count)
end

for i, minute, task_type, processed, failed, run, wait in types() do
  local hour, day = math.floor(minute / 60), math.floor(minute / 1440)
  add_counts(keys.type_minutes(whole(hour)), (hour + 1) * 3600 + minutes_kept, whole(minute), task_type, most_types * 60,
    processed, failed, run, wait)
  add_counts(keys.type_hours(whole(day)), (day + 1) * 86400 + hours_kept, whole(hour), task_type, most_types * 24,
    processed, failed, run, wait)
end

local seen, names = {}, {}
for i, minute, group_id, amount, at, error in groups() do
  local hour, day = math.floor(minute / 60), math.floor(minute / 1440)
  add_number(keys.error_minutes(whole(hour)), (hour + 1) * 3600 + minutes_kept, whole(minute), group_id, most_groups * 60, amount)
  add_number(keys.error_hours(whole(day)), (day + 1) * 86400 + hours_kept, whole(hour), group_id, most_groups * 24, amount)
  local before = seen[group_id] or redis.call('HGET', errors, group_id)
  if not seen[group_id] then names[#names + 1] = group_id end
  seen[group_id] = (before and string.match(before, '^%d+') or at) .. ' ' .. at .. '\n' .. error
end

-- drop_oldest: make room for new groups: those whose last error is the longest ago.
local function drop_oldest()
  local excess = redis.call('HLEN', errors) - most_groups
  if excess <= 0 then return end
  local known, order = redis.call('HGETALL', errors), {}
  for i = 1, #known, 2 do
    order[#order + 1] = { name = known[i], last = tonumber(string.match(known[i + 1], '^%d+ (%d+)') or 0) }
  end
  table.sort(order, function(one, other) return one.last < other.last end)
  for i = 1, excess do redis.call('HDEL', errors, order[i].name) end
end

redis.call('SET', recorded, whole(number), 'PX', memory_ms)
for key, values in pairs(fields) do
  for field, value in pairs(values) do redis.call('HSET', key, field, value) end
  redis.call('EXPIREAT', key, whole(expiries[key]))
end
if #names > 0 then
  for _, name in ipairs(names) do redis.call('HSET', errors, name, seen[name]) end
  drop_oldest()
  redis.call('EXPIRE', errors, whole(hours_kept))
end
return 1

-- stats: how many tasks a queue has in each state, and its counters.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets paused processed failed
-- ARGV  queue_prefix max_groups [now_ms]
-- RETURNS  {now as unix ns, pending, active, scheduled, retry, archived, completed, processed today, failed today,
--   processed in all, failed in all, paused, pending_since of the next task (empty if unknown), groups, aggregating
--   (-1: more groups than max_groups, count them page by page)}
-- include: clock checks counters places
local paused, processed, failed = KEYS[11], KEYS[12], KEYS[13]
local now, _, nanoseconds = clock(ARGV[3])
local day = ':' .. day_of(now)

local function number(key)
  local found = redis.pcall('GET', key)
  return type(found) == 'string' and found or '0'
end

-- A key of a wrong type counts nothing: the doctor tells of it, and the other numbers are shown.
local function size(command, key)
  local found = redis.pcall(command, key)
  return type(found) == 'number' and found or 0
end

local since = ''
local first = redis.pcall('LINDEX', pending, -1)
if type(first) == 'string' then
  local found = redis.pcall('HGET', task_prefix .. first, 'pending_since')
  since = type(found) == 'string' and found or ''
end
local named, aggregating = size('SCARD', groups), 0
if named > tonumber(ARGV[2]) then
  aggregating = -1
elseif named > 0 then
  for _, group in ipairs(redis.call('SMEMBERS', groups)) do
    aggregating = aggregating + size('ZCARD', group_prefix .. group)
  end
end
return {
  nanoseconds,
  size('LLEN', pending),
  size('LLEN', active),
  size('ZCARD', scheduled),
  size('ZCARD', retry),
  size('ZCARD', archived),
  size('ZCARD', completed),
  number(processed .. day),
  number(failed .. day),
  number(processed),
  number(failed),
  redis.call('EXISTS', paused),
  since,
  named,
  aggregating,
}

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

local since = ''
local first = redis.call('LINDEX', pending, -1)
if first then
  local found = redis.pcall('HGET', task_prefix .. first, 'pending_since')
  since = type(found) == 'string' and found or ''
end
local named, aggregating = redis.call('SCARD', groups), 0
if named > tonumber(ARGV[2]) then
  aggregating = -1
else
  for _, group in ipairs(redis.call('SMEMBERS', groups)) do
    local members = redis.pcall('ZCARD', group_prefix .. group)
    if type(members) == 'number' then aggregating = aggregating + members end
  end
end
return {
  nanoseconds,
  redis.call('LLEN', pending),
  redis.call('LLEN', active),
  redis.call('ZCARD', scheduled),
  redis.call('ZCARD', retry),
  redis.call('ZCARD', archived),
  redis.call('ZCARD', completed),
  number(processed .. day),
  number(failed .. day),
  number(processed),
  number(failed),
  redis.call('EXISTS', paused),
  since,
  named,
  aggregating,
}

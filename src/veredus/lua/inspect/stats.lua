-- stats: how many tasks a queue has in each state, and its counters.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets paused processed failed
-- ARGV  queue_prefix max_groups:number
-- RETURNS  {now as unix ns, pending, active, scheduled, retry, archived, completed, processed today, failed today,
--   processed in all, failed in all, paused, pending_since of the task that has waited longest of the next one and of those
--   that wait for their order key or for a limit (empty if unknown), groups, aggregating
--   (-1: more groups than max_groups, count them page by page)}
-- NEEDS  clock counters
local LOOKED_AT = 200 -- order keys and limits; of more, the others are left out
local now, _, nanoseconds = clock()
local day = day_of(now)

local function number(key)
  local found = redis.pcall('GET', key)
  return type(found) == 'string' and found or '0'
end

-- A key of a wrong type counts nothing: the doctor reports it, and the other numbers are shown.
local function size(command, key)
  local found = redis.pcall(command, key)
  return type(found) == 'number' and found or 0
end

local since = ''
local first = redis.pcall('LINDEX', pending, -1)
if type(first) == 'string' then
  local found = redis.pcall('HGET', keys.task(first), 'pending_since')
  since = type(found) == 'string' and found or ''
end

-- note_since: what waits behind an order key or a limit is ready to run, too.
local function note_since(id)
  local found = id and redis.pcall('HGET', keys.task(id), 'pending_since')
  if type(found) ~= 'string' then return end
  if since == '' or #found < #since or (#found == #since and found < since) then since = found end
end

-- second_of: the one that waits next in a lane: the first has the key.
local function second_of(order_key)
  local second = unpack(redis.pcall('ZRANGE', keys.lane(order_key), 1, 1), 1, 1)
  return second
end
local order_keys = redis.pcall('ZRANGE', keys.lanes(), 0, LOOKED_AT - 1)
for _, order_key in ipairs(order_keys.err and {} or order_keys) do note_since(second_of(order_key)) end
local scopes = redis.pcall('ZRANGE', keys.limited(), 0, LOOKED_AT - 1)
for _, scope in ipairs(scopes.err and {} or scopes) do
  local longest = redis.pcall('ZRANGE', keys.waiting(scope), 0, 0)
  note_since(not longest.err and longest[1])
end
local named, aggregating = size('SCARD', groups), 0
if named > max_groups then
  aggregating = -1
elseif named > 0 then
  for _, group in ipairs(redis.call('SMEMBERS', groups)) do
    aggregating = aggregating + size('ZCARD', keys.group(group))
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
  number(keys.processed_on(day)),
  number(keys.failed_on(day)),
  number(processed),
  number(failed),
  redis.call('EXISTS', paused),
  since,
  named,
  aggregating,
}

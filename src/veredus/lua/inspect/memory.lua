-- memory: about how many bytes a queue takes, from a sample of its tasks.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix sample:number max_groups:number
-- RETURNS  bytes
-- NEEDS  nothing
local function of_tasks(ids, size)
  local bytes = 0
  for _, id in ipairs(ids) do bytes = bytes + (redis.call('MEMORY', 'USAGE', keys.task(id)) or 0) end
  return #ids > 0 and bytes / #ids * size or 0
end

local total = 0
for _, list in ipairs({ pending, active }) do
  total = total + (redis.call('MEMORY', 'USAGE', list) or 0)
  total = total + of_tasks(redis.call('LRANGE', list, 0, sample - 1), redis.call('LLEN', list))
end
local sets = { scheduled, retry, archived, completed }
local _, page = unpack(redis.call('SSCAN', groups, 0, 'COUNT', max_groups), 1, 2)
for i = 1, math.min(#page, max_groups) do sets[#sets + 1] = keys.group(page[i]) end
local grouped = 0
for i, set in ipairs(sets) do
  local bytes = redis.call('MEMORY', 'USAGE', set) or 0
  bytes = bytes + of_tasks(redis.call('ZRANGE', set, 0, sample - 1), redis.call('ZCARD', set))
  if i > 4 then grouped = grouped + bytes else total = total + bytes end
end
if #sets > 4 then total = total + grouped / (#sets - 4) * redis.call('SCARD', groups) end
return math.floor(total)

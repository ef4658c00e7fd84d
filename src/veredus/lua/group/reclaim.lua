-- reclaim: give the members of aggregation sets whose time is over, or of one set that is named, back to their groups.
-- KEYS  sets groups
-- ARGV  queue_prefix limit:number named
-- RETURNS  {number of members given back, 1 if there may be more or 0, {set that could not be given back, reason, ...}}
-- NEEDS  clock checks regroup grow
-- In portions of `limit`: a set that has lost members to its group can no longer be aggregated, so that is safe.
local now = clock()
local AGAIN = 120 -- seconds until a set that cannot be given back is looked at again
expect(sets, 'zset')
expect(groups, 'set')

local stale = {}
if named == '' then
  stale = redis.call('ZRANGEBYSCORE', sets, '-inf', whole(math.floor(now / 1000)), 'LIMIT', 0, 100)
elseif redis.call('ZSCORE', sets, named) then
  stale = { named }
end

local moved, bad, more = 0, {}, #stale == 100
if #stale > 0 then may_grow(sets) end
for _, set in ipairs(stale) do
  if moved >= limit then
    more = true
    break
  end
  local group = group_of(queue_prefix, set)
  local size = redis.pcall('ZCARD', set)
  local waiting = group and redis.pcall('ZCARD', keys.group(group))
  if type(size) == 'number' and type(waiting) == 'number' then
    moved = moved + regroup(queue_prefix, set, groups, group, limit - moved)
    if redis.call('ZCARD', set) == 0 then redis.call('ZREM', sets, set) else more = true end
  else
    bad[#bad + 1] = set
    bad[#bad + 1] = group and 'wrongtype' or 'no group in its name'
    redis.call('ZADD', sets, whole(math.floor(now / 1000) + AGAIN), set)
  end
end
return { moved, more and 1 or 0, bad }

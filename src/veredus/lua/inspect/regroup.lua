-- regroup: give the members of a set under the groups' prefix back to the groups that they name, and list those.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix set group stale_before:number limit:number apply:flag
-- RETURNS  {members moved or dropped, members left, 1 or more if the lists of groups and of sets were changed};
--   without apply the last says whether there is anything to do
-- NEEDS  checks fields places
-- A set in flight that is not stale yet, or a group that is listed, is left alone. An empty `set` only asks
-- whether `group` is rightly listed. The members themselves know their group: a key alone does not tell a group from
-- a set.
expect(groups, 'set')
expect(aggregation_sets, 'zset')
if set == '' then
  local is_wrong = redis.call('SISMEMBER', groups, group) == 1 and redis.call('EXISTS', keys.group(group)) == 0
  if is_wrong and apply then redis.call('SREM', groups, group) end
  return { 0, 0, is_wrong and 1 or 0 }
end
local deadline = redis.call('ZSCORE', aggregation_sets, set)
local name = name_under_groups(set)
local size = name and redis.call('ZCARD', set) or 0
if size == 0 then -- a name without a set
  if deadline and apply then redis.call('ZREM', aggregation_sets, set) end
  return { 0, 0, deadline and 1 or 0 }
end
if deadline and tonumber(deadline) >= stale_before then return { 0, size, 0 } end
if redis.call('SISMEMBER', groups, name) == 1 then return { 0, size, 0 } end
if not apply then return { 0, size, 1 } end

local moved, changed = 0, 0
local page = redis.call('ZRANGE', set, 0, limit - 1, 'WITHSCORES')
for i = 1, #page, 2 do
  local id, score = page[i], page[i + 1]
  local task = read_task(keys.task(id), 'state', 'group')
  if not task or task.state ~= 'aggregating' then
    redis.call('ZREM', set, id) -- it is elsewhere, or nowhere
    moved = moved + 1
  else
    local home = task.group or group
    if keys.group(home) ~= set then
      redis.call('ZREM', set, id)
      redis.call('ZADD', keys.group(home), score, id)
      moved = moved + 1
    end
    changed = changed + redis.call('SADD', groups, home)
  end
end
local left = redis.call('ZCARD', set)
if left == 0 then changed = changed + redis.call('ZREM', aggregation_sets, set) end
return { moved, left, changed }

-- NEEDS  checks

-- The containers of one queue, which every script of the inspector lists first among its keys.
local SETS = { scheduled = scheduled, retry = retry, archived = archived, completed = completed }

-- expect_places: stop before the first write when any container has a wrong type.
local function expect_places()
  expect(pending, 'list')
  expect(active, 'list')
  expect(groups, 'set')
  for _, key in ipairs({ lease, scheduled, retry, archived, completed, due, aggregation_sets }) do
    expect(key, 'zset')
  end
end

-- score_in: the score of an id, or nil when it is not there (or the key is no sorted set).
local function score_in(set, id)
  local found = redis.pcall('ZSCORE', set, id)
  return type(found) == 'string' and found or nil
end

-- name_under_groups: what follows the prefix of all groups in a key; nil for another key.
local function name_under_groups(key)
  local first, last = string.find(key, keys.group_prefix(), 1, true)
  return first == 1 and string.sub(key, last + 1) or nil
end

-- leave_group: take an id out of its group, and the group off the list of groups when that was the last.
local function leave_group(group, id)
  local key = keys.group(group)
  if redis.pcall('ZREM', key, id) ~= 1 then return false end
  if redis.call('EXISTS', key) == 0 then redis.call('SREM', groups, group) end
  return true
end

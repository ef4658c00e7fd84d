-- places: every container of one queue. All inspecting scripts get these keys first, in this order, and the queue's
-- prefix as their first argument.
local pending, active, lease, scheduled, retry, archived, completed, due, groups, aggregation_sets = unpack(KEYS)
local queue_prefix = ARGV[1]
local task_prefix, group_prefix = queue_prefix .. 't:', queue_prefix .. 'g:'
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

-- leave_group: take an id out of its group, and the group off the list of groups when that was the last.
local function leave_group(group, id)
  local key = group_prefix .. group
  if redis.pcall('ZREM', key, id) ~= 1 then return false end
  if redis.call('EXISTS', key) == 0 then redis.call('SREM', groups, group) end
  return true
end

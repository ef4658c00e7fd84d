-- group_of: the group's name in the key of one of its aggregation sets; nil if the key is none.
local function group_of(set, group_prefix)
  if string.sub(set, 1, #group_prefix) ~= group_prefix then return nil end
  return string.match(string.sub(set, #group_prefix + 1), '^(.+):[^:]+$')
end

-- regroup: give up to `most` members of a set back to their group, with their scores, and name the group again. Returns
-- their number.
local function regroup(set, group_prefix, groups, group, most)
  local rows = redis.call('ZRANGE', set, 0, most - 1, 'WITHSCORES')
  if #rows == 0 then return 0 end
  local scored, ids = {}, {}
  for i = 1, #rows, 2 do
    ids[#ids + 1] = rows[i]
    scored[#scored + 1] = rows[i + 1]
    scored[#scored + 1] = rows[i]
  end
  redis.call('SADD', groups, group)
  in_chunks('ZADD', group_prefix .. group, scored)
  in_chunks('ZREM', set, ids)
  return #ids
end

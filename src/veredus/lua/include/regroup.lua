-- NEEDS  chunks

-- group_of: the group's name in the key of one of its aggregation sets; nil for any other key.
local function group_of(queue_prefix, set)
  local prefix = keys.group_prefix()
  local first, last = string.find(set, prefix, 1, true)
  if first ~= 1 then return nil end
  return string.match(set, '^(.+):[^:]+$', last + 1)
end

-- regroup: give up to `most` members of a set back to their group, with their scores, and name the group again. Returns
-- their number.
local function regroup(queue_prefix, set, groups, group, most)
  local members = redis.call('ZRANGE', set, 0, most - 1, 'WITHSCORES')
  if #members == 0 then return 0 end
  local scored, ids = {}, {}
  for i = 1, #members, 2 do
    local id, score = members[i], members[i + 1]
    ids[#ids + 1] = id
    scored[#scored + 1] = score
    scored[#scored + 1] = id
  end
  redis.call('SADD', groups, group)
  in_chunks('ZADD', keys.group(group), scored)
  in_chunks('ZREM', set, ids)
  return #ids
end

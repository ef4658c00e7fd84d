-- NEEDS  nothing

-- leave_group_until_due: a task is no member of its group now and joins it again when it is due. `group` is the field by which Go's
-- forwarder would put it into the group without listing the group, where nobody finds it; only ours read `due_group`. The lock
-- is named in the hash: of a member that Go added, only the message has it.
local function leave_group_until_due(key, group, lock)
  redis.call('HSET', key, 'due_group', group)
  redis.call('HDEL', key, 'group', 'group_seq')
  if lock and lock ~= '' then redis.call('HSET', key, 'unique_key', lock) end
end

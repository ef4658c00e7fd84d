-- done: delete tasks that succeeded and leave nothing behind.
-- KEYS  active lease processed
-- ARGV  task_prefix count {task_id owner unique_key}* [now_ms]
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- include: clock checks chunks hold counters
local active, lease, processed = unpack(KEYS)
local task_prefix, count = ARGV[1], tonumber(ARGV[2])
local now = clock(ARGV[3 + count * 3])
expect(active, 'list')

local ends = lease_ends(lease, 3, 3, count)
local lost, ids, keys, seen = {}, {}, {}, {}
for i = 1, count do
  local id, owner, lock = unpack(ARGV, i * 3, i * 3 + 2)
  local key = task_prefix .. id
  if not seen[id] and owns(key, owner, ends[i]) then
    seen[id] = true
    redis.call('LREM', active, -1, id)
    release(lock, id)
    ids[#ids + 1] = id
    keys[#keys + 1] = key
  else
    lost[#lost + 1] = i
  end
end
in_chunks('ZREM', lease, ids)
delete_all(keys)
tally(now, processed, #ids, nil, 0)
return lost

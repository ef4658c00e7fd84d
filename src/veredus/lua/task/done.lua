-- done: delete tasks that succeeded and leave nothing behind.
-- KEYS  active lease processed
-- ARGV  task_prefix count {task_id owner unique_key}* [now_ms]
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- include: clock checks chunks active hold counters tell
local active, lease, processed = unpack(KEYS)
local task_prefix, count = ARGV[1], tonumber(ARGV[2])
local now = clock(ARGV[3 + count * 3])
expect(active, 'list')

local ends = lease_ends(lease, 3, 3, count)
local lost, ids, keys, seen, waited = {}, {}, {}, {}, {}
for i = 1, count do
  local id, owner, lock = unpack(ARGV, i * 3, i * 3 + 2)
  local key = task_prefix .. id
  local held = not seen[id] and owns(key, owner, ends[i])
  if held then
    seen[id] = true
    release(lock, id)
    if held[3] then
      local verb = redis.call('HGET', key, 'cancel') == 'delete' and 'cancelled' or 'done'
      waited[#waited + 1] = { held[3], verb, key }
    end
    ids[#ids + 1] = id
    keys[#keys + 1] = key
  else
    lost[#lost + 1] = i
  end
end
leave_active(active, ids)
in_chunks('ZREM', lease, ids)
delete_all(keys)
for _, row in ipairs(waited) do tell(row[1], row[2], row[3]) end
tally(now, processed, #ids, nil, 0)
return lost

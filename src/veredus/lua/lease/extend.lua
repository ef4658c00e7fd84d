-- extend: prolong the leases of running tasks; one that expired but that nobody claimed comes back to life.
-- KEYS  lease
-- ARGV  task_prefix count {task_id owner lease_ms}* [now_ms]
-- RETURNS  {now_ms, {positions (from 1) of those that this owner no longer holds}, {position, how to cancel it, ...}}
-- include: clock checks grow hold lanes limits
local lease = KEYS[1]
local task_prefix, count = ARGV[1], tonumber(ARGV[2])
local now = clock(ARGV[3 + count * 3])
expect(lease, 'zset')

local ends = lease_ends(lease, 3, 3, count)
local lost, cancels = {}, {}
for i = 1, count do
  local id, owner, lease_ms = unpack(ARGV, i * 3, i * 3 + 2)
  local key = task_prefix .. id
  local held = ends[i] and owns(key, held_by(owner, ends[i]), 'cancel')
  if held then
    local lease_end = whole(math.ceil((now + tonumber(lease_ms)) / 1000))
    grow('ZADD', lease, lease_end, id)
    redis.call('HSET', key, 'held', held_by(owner, lease_end))
    keep_lock(held[3], id, lease_ms)
    if held[5] then keep_slots(string.sub(task_prefix, 1, -3), held[5], id, lease_end) end
    if held[2] then
      cancels[#cancels + 1] = i
      cancels[#cancels + 1] = held[2]
    end
  else
    lost[#lost + 1] = i
  end
end
return { now, lost, cancels }

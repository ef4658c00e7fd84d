-- extend: prolong the leases of running tasks; one that expired but that nobody claimed is held again.
-- KEYS  lease
-- ARGV  queue_prefix ROWS task_id owner lease_ms:number
-- RETURNS  {now_ms, {positions (from 1) of those that this owner no longer holds}, {position, how to cancel it, ...}}
-- NEEDS  clock checks grow ownership limits
local now = clock()
expect(lease, 'zset')

local ends = lease_ends(lease, rows_first, rows_width, rows_count)
local lost, cancels = {}, {}
for i, task_id, owner, lease_ms in rows() do
  local key = keys.task(task_id)
  local held, cancel, unique_key, slots = unpack(read('HMGET', key, 'held', 'cancel', 'unique_key', 'slots'), 1, 4)
  if held and ends[i] and held == held_by(owner, ends[i]) then
    local lease_end = whole(math.ceil((now + lease_ms) / 1000))
    grow('ZADD', lease, lease_end, task_id)
    redis.call('HSET', key, 'held', held_by(owner, lease_end))
    keep_lock(unique_key, task_id, lease_ms)
    if slots then keep_slots(queue_prefix, slots, task_id, lease_end) end
    if cancel then
      cancels[#cancels + 1] = i
      cancels[#cancels + 1] = cancel
    end
  else
    lost[#lost + 1] = i
  end
end
return { now, lost, cancels }

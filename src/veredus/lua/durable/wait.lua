-- wait: the instant at which a wait of a running task ends, stored at its first call; or its outcome, once there is one.
-- KEYS  lease
-- ARGV  queue_prefix task_id owner field delay_ms:number outcome times_out:flag
-- RETURNS  {now_ms, value of the field}: an instant in ms, 0 for no end, or an outcome; empty if this owner no longer holds the task
-- NEEDS  clock checks grow ownership waits
-- `delay_ms` is -1 for a wait without end. The first outcome counts: `outcome`, if it is not empty, or `-` for a wait that has
-- timed out, with `times_out`.
local now, now_up = clock()
expect(lease, 'zset')
local key = keys.task(task_id)
local is_owned, value = owned(key, lease, task_id, owner, field)
if not is_owned then return { now, '' } end
local stored = value
if not value then value = delay_ms < 0 and '0' or whole(now_up + delay_ms) end
if not is_outcome(value) then
  local ends = tonumber(value) or 0
  if outcome ~= '' then
    value = outcome
  elseif times_out and ends > 0 and ends <= now then
    value = '-'
  end
end
if value ~= stored then
  grow('HSET', key, field, value)
  if not stored then redis.call('HSET', key, 'b:' .. field, whole(now)) end
  if is_outcome(value) then note_came(key, field, now) end
end
return { now, value }

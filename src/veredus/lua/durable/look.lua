-- look: tasks whose waits are due for a check, because the process that should have woken them may have failed.
-- KEYS  waits scheduled
-- ARGV  queue_prefix limit:number
-- RETURNS  {id, mark, kind, field, ...}
-- NEEDS  clock checks fields grow ownership waits
-- The next look is planned here, so several workers share the work. What no longer waits leaves the index.
local now = clock()
expect(waits, 'zset')
expect(scheduled, 'zset')
may_grow(waits)
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', waits, '-inf', whole(now), 'LIMIT', 0, limit)) do
  local task = read_task(keys.task(id), 'state', 'run', 'waiting', 'unique_key') or {}
  local kind, _, since, field = read_wait(task.waiting or '')
  if task.state == 'scheduled' and kind and redis.call('ZSCORE', scheduled, id) then
    redis.call('ZADD', waits, whole(next_look(since, now)), id)
    keep_lock(task.unique_key, id, 3600000)
    for _, value in ipairs({ id, task.run or '', kind, field }) do found[#found + 1] = value end
  else
    redis.call('ZREM', waits, id)
  end
end
return found

-- owned: the leases that one worker holds in a queue, the first to expire first.
-- KEYS  lease
-- ARGV  queue_prefix worker limit:number
-- RETURNS  {now_ms, {id, owner, message, ...}}
-- NEEDS  clock fields ownership
-- `worker` is how the owners of its tasks begin. A lease that another process wrote since then is no longer its own.
local found = {}
local page = redis.call('ZRANGE', lease, 0, limit - 1, 'WITHSCORES')
for i = 1, #page, 2 do
  local id, lease_end = page[i], page[i + 1]
  local task = read_task(keys.task(id), 'held', 'msg') or {}
  local owner = owner_in(task.held, lease_end)
  if owner and task.msg and string.find(owner, worker, 1, true) == 1 then
    for _, value in ipairs({ id, owner, task.msg }) do found[#found + 1] = value end
  end
end
local now = clock()
return { now, found }

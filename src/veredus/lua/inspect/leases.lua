-- leases: who holds which task of a queue and until when, the first to expire first.
-- KEYS  lease
-- ARGV  queue_prefix start:number size:number
-- RETURNS  {now_ms, {id, lease end in s, held, message, ...}}
-- NEEDS  clock fields
local now = clock()
local page = redis.call('ZRANGE', lease, start, start + size - 1, 'WITHSCORES')
local found = {}
for i = 1, #page, 2 do
  local task_id, lease_end = page[i], page[i + 1]
  local task = read_task(keys.task(task_id), 'held', 'msg') or {}
  for _, value in ipairs({ task_id, lease_end, task.held or false, task.msg or false }) do found[#found + 1] = value end
end
return { now, found }

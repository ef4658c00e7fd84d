-- step: keep the results of steps, and other fields of running durable tasks.
-- KEYS  lease
-- ARGV  queue_prefix ROWS task_id owner field value
-- RETURNS  positions (from 1) of the rows whose task this owner no longer holds; nothing was changed for them
-- NEEDS  checks grow ownership
expect(lease, 'zset')
local lost = {}
for i, task_id, owner, field, value in rows() do
  local key = keys.task(task_id)
  if owned(key, lease, task_id, owner) then grow('HSET', key, field, value) else lost[#lost + 1] = i end
end
return lost

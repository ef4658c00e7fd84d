-- forget: delete children that have ended and whose results are no longer needed.
-- KEYS  completed
-- ARGV  queue_prefix ROWS task_id
-- RETURNS  number of tasks that were deleted
-- NEEDS  checks chunks
expect(completed, 'zset')
local dead = {}
for _, task_id in rows() do
  local key = keys.task(task_id)
  if redis.pcall('HGET', key, 'state') == 'completed' and redis.call('ZREM', completed, task_id) == 1 then
    dead[#dead + 1] = key
  end
end
delete_all(dead)
return #dead

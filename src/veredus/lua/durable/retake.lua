-- retake: a durable task that was archived is run again: it forgets the failures that were kept, of steps and of children.
-- KEYS  lease
-- ARGV  queue_prefix task_id owner ROWS(fields) field ROWS(kids) name position:number
-- RETURNS  1, or 0 if this owner no longer holds the task
-- NEEDS  checks ownership
expect(lease, 'zset')
local key = keys.task(task_id)
local is_owned, mark = owned(key, lease, task_id, owner, 'run')
if not is_owned then return 0 end
for _, field in fields() do redis.call('HDEL', key, field) end
for _, name, position in kids() do
  redis.call('HDEL', keys.kids(task_id, mark, name, math.floor(position / 1000)), string.format('%.0f', position))
  redis.call('HDEL', key, 'o:' .. name)
end
redis.call('HDEL', key, 'resumed')
return 1

-- retake: a durable task that was archived is run again: it forgets the failures that were kept, of steps and of children.
-- KEYS  lease
-- ARGV  queue_prefix task_id owner is_last:flag ROWS(fields) field ROWS(kids) name position:number
-- RETURNS  1, or 0 if this owner no longer holds the task
-- NEEDS  checks chunks ownership
-- Many failures come in several calls. Until the last one, an attempt that begins anew forgets all of them once more.
expect(lease, 'zset')
local key = keys.task(task_id)
local is_owned, mark = owned(key, lease, task_id, owner, 'run')
if not is_owned then return 0 end
local dead = {}
for i, field in fields() do dead[i] = field end
in_chunks('HDEL', key, dead)
for _, name, position in kids() do
  redis.call('HDEL', keys.kids(task_id, mark, name, math.floor(position / 1000)), string.format('%.0f', position))
  redis.call('HDEL', key, 'o:' .. name)
end
if is_last then redis.call('HDEL', key, 'resumed') end
return 1

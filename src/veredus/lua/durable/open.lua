-- open: what a durable task has kept so far. Its first run gets a mark, so that another task with the same id has another one.
-- KEYS  lease
-- ARGV  queue_prefix task_id owner new_mark most:number
-- RETURNS  {now_ms, mark, {field, value, ...}, 1 if there are more fields than were asked for, order key, 1 if it was archived and is
--   run again, the wait that has ended before this attempt}; an empty mark if this owner no longer holds the task
-- NEEDS  clock checks grow ownership
-- A task that has begun does not expire: `expires` is about its first start.
local now = clock()
expect(lease, 'zset')
local key = keys.task(task_id)
local is_owned, mark, order_key, resumed, woke = owned(key, lease, task_id, owner, 'run', 'order_key', 'resumed', 'woke')
if not is_owned then return { now, '', {}, 0, '', 0, '' } end
order_key, resumed = order_key or '', resumed and 1 or 0
if woke then redis.call('HDEL', key, 'woke') else woke = '' end
if not mark then
  grow('HSET', key, 'run', new_mark, 'b:', whole(now))
  redis.call('HDEL', key, 'expires_at')
  return { now, new_mark, {}, 0, order_key, 0, '' }
end
if redis.call('HLEN', key) > most then return { now, mark, {}, 1, order_key, resumed, woke } end
local all, kept = redis.call('HGETALL', key), {}
for i = 1, #all, 2 do
  if string.sub(all[i], 2, 2) == ':' then
    kept[#kept + 1] = all[i]
    kept[#kept + 1] = all[i + 1]
  end
end
return { now, mark, kept, 0, order_key, resumed, woke }

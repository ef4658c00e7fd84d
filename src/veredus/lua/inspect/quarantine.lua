-- quarantine: archive a task whose message cannot be read, with a readable stand-in; the bytes stay beside it.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix task_id seen_at:number message stand_in
-- RETURNS  1 archived, 0 no such task, -1 it is running (its worker will do this), -5 it has changed since
-- NEEDS  clock ownership places lanes limits take_out
local now, _, nanoseconds = clock()
expect_places()

local code, task = take_one(task_id, seen_at, function(task)
  if task.state == 'active' then return -1 end
  if redis.call('HGET', task.key, 'msg') ~= message then return -5 end
end)
if code ~= 1 and code ~= -3 then return code end
task = task or look(task_id) -- one that was nowhere comes to a place, too
redis.call('HSET', task.key, 'msg', stand_in, 'original', message, 'state', 'archived')
redis.call('HDEL', task.key, 'pending_since', 'held')
redis.call('ZADD', archived, whole(math.floor(now / 1000)), task_id)
release(task.lock, task_id)
if task.limited_by then stop_waiting(queue_prefix, task.limited_by, task_id) end
if task.order_key then yield_lane(queue_prefix, task.order_key, task_id, nanoseconds) end
return 1

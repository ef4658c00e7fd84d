-- quarantine: archive a task whose message cannot be read, with a readable stand-in; the bytes stay beside it.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix task_id seen_at message stand_in [now_ms]
-- RETURNS  1 archived, 0 no such task, -1 it is running (its worker will do this), -5 it changed meanwhile
-- include: clock checks hold places locks lanes limits taking
local id, _, message, stand_in = unpack(ARGV, 2, 5)
local now, _, nanoseconds = clock(ARGV[6])
expect_places()

local codes, tasks = take(2, 1, function(task)
  if task.state == 'active' then return -1 end
  if redis.call('HGET', task.key, 'msg') ~= message then return -5 end
end)
if codes[1] ~= 1 and codes[1] ~= -3 then return codes[1] end
local task = tasks[1] or look(id) -- one that was nowhere comes to a place, too
redis.call('HSET', task.key, 'msg', stand_in, 'original', message, 'state', 'archived')
redis.call('HDEL', task.key, 'pending_since', 'held')
redis.call('ZADD', archived, whole(math.floor(now / 1000)), id)
release(task.lock, id)
if task.limited_by then stop_waiting(queue_prefix, task.limited_by, id) end
if task.order_key then yield_lane(queue_prefix, task.order_key, id, nanoseconds) end
return 1

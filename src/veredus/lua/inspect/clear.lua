-- clear: delete keys of a queue that has no tasks left; the last call also takes its pause and its name.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets paused [queues]
-- ARGV  queue_prefix queue is_last:flag ROWS key
-- RETURNS  1 cleared, 0 the queue has tasks again: nothing was deleted
-- NEEDS  chunks
-- With all containers empty in the same instant, a task's hash among the keys is one that no list has.
for _, key in ipairs({ pending, active, scheduled, retry, archived, completed, groups }) do
  if redis.call('EXISTS', key) == 1 then return 0 end
end

local given = { lease, due, aggregation_sets }
for _, key in rows() do
  if key ~= paused then given[#given + 1] = key end
end
if is_last then given[#given + 1] = paused end
if is_last and queues then redis.call('SREM', queues, queue) end -- first: it refuses a key of a wrong type
delete_all(given)
return 1

-- clear: delete keys of a queue that has no tasks left; the last call also takes its pause and its name.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets paused [queues]
-- ARGV  queue_prefix queue last count {key}* [now_ms]
-- RETURNS  1 cleared, 0 somebody has enqueued tasks meanwhile: nothing was deleted
-- include: clock checks chunks places
-- With all containers empty in the same instant, a task's hash among the keys is one that no list has.
local paused, queues = KEYS[11], KEYS[12]
local queue, last, count = ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
for _, key in ipairs({ pending, active, scheduled, retry, archived, completed, groups }) do
  if redis.call('EXISTS', key) == 1 then return 0 end
end

local keys = { lease, due, aggregation_sets }
for i = 5, 4 + count do
  if ARGV[i] ~= paused then keys[#keys + 1] = ARGV[i] end
end
if last then keys[#keys + 1] = paused end
delete_all(keys)
if last and queues then redis.call('SREM', queues, queue) end
return 1

-- spawn: store children and note for each the parent that waits for it, in one step.
-- KEYS  MORE insert_keys
-- ARGV  queue_prefix ROWS(children) task_id waiter ROWS(arguments) value
-- RETURNS  what the insert returns
-- NEEDS  nothing
-- `insert` is the script that stores the tasks: the store puts it in front of this one as a function.
local args = {}
for i, value in arguments() do args[i] = value end
args[#args + 1] = given_now_ms
local codes = insert(insert_keys, args)
for i, task_id, waiter in children() do
  if codes[i] == 1 then redis.call('HSET', keys.task(task_id), 'waited', waiter) end
end
return codes

-- holders: store tasks, and say of each that a unique lock refused which task has the lock and in which state that is.
-- KEYS  MORE insert_keys
-- ARGV  queue_prefix ROWS(locks) unique_key ROWS(arguments) value
-- RETURNS  what the insert returns, and behind it {place, task_id, state} for each task with the code -1; without a state
--   if the holder is gone
-- NEEDS  nothing
-- `insert` is the script that stores the tasks, also `replace` with one inside: the store puts it in front of this one
-- as a function.
local args = {}
for i, value in arguments() do args[i] = value end
args[#args + 1] = given_now_ms
local codes = insert(insert_keys, args)
for i, unique_key in locks() do
  if codes[i] == -1 then
    local id = redis.pcall('GET', unique_key)
    if type(id) == 'string' then
      local state = redis.pcall('HGET', keys.task(id), 'state')
      codes[#codes + 1] = { i, id, type(state) == 'string' and state or '' }
    end
  end
end
return codes

-- holders: store tasks, and tell of each that a unique lock refused who has the lock and how that task stands.
-- KEYS  {key of the insert}*
-- ARGV  task_prefix count {unique_key}* size {argument of the insert}* [now_ms]
-- RETURNS  what the insert returns, and behind it {place, task_id, state} for each task with the code -1; without a state
--   if the holder is gone
-- `insert` is the script that stores the tasks, also `replace` with one inside: the store puts it in front of this one as
-- a function.
local task_prefix, count = ARGV[1], tonumber(ARGV[2])
local size = tonumber(ARGV[3 + count])
local args = {}
for i = 1, size + 1 do args[i] = ARGV[3 + count + i] end
local codes = insert(KEYS, args)
for i = 1, count do
  if codes[i] == -1 then
    local id = redis.pcall('GET', ARGV[2 + i])
    if type(id) == 'string' then
      local state = redis.pcall('HGET', task_prefix .. id, 'state')
      codes[#codes + 1] = { i, id, type(state) == 'string' and state or '' }
    end
  end
end
return codes

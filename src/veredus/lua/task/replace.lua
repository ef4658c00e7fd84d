-- replace: put a new task in the place of one that has ended and has the same id, in one step.
-- KEYS  archived completed sent MORE insert_keys
-- ARGV  queue_prefix task_id unique_key number ROWS(arguments) value
-- RETURNS  {code of the insert}: 1 stored, 0 the task with this id has not ended, -1 another task holds the unique lock,
--   -4 the queue is closed, -5 `sent` has another call
-- NEEDS  checks ownership closed sent
-- `insert` is the script that any client runs to enqueue or schedule a task: the store puts it in front of this one as a
-- function. It writes the record `sent`, too.
local SETS = { archived = archived, completed = completed }
local key = keys.task(task_id)
expect(archived, 'zset')
expect(completed, 'zset')
local answered = number ~= '' and sent_codes_of(redis.call('GET', sent), number, task_id, 1)
if answered then return answered end
if is_closed(queue_prefix) then return { -4 } end

local state, old_lock, order_key = unpack(redis.call('HMGET', key, 'state', 'unique_key', 'order_key'), 1, 3)
local set = SETS[state]
local has_ended = set and redis.call('ZSCORE', set, task_id) and not order_key -- an ordered one may still hold up its lane
if redis.call('EXISTS', key) == 1 and not has_ended then return { 0 } end
local holder = unique_key ~= '' and redis.call('GET', unique_key)
if holder and holder ~= task_id then return { -1 } end

-- Should the insert fail or refuse, what was there stays as it was. The key is outside the tasks' own: next to them, with
-- something behind the id, it could be another task.
if set then redis.call('RENAME', key, keys.replaced()) end
release(old_lock, task_id)
local args = {}
for i, value in arguments() do args[i] = value end
args[#args + 1] = given_now_ms
local has_run, codes = pcall(insert, insert_keys, args)
local code = has_run and unpack(codes, 1, 1)
if code ~= 1 then
  if set then redis.call('RENAME', keys.replaced(), key) end
  if not has_run then error(codes) end
elseif set then
  redis.call('ZREM', set, task_id)
  redis.call('DEL', keys.replaced())
end
return codes

-- replace: put a new task in the place of one that has ended and has the same id, in one step.
-- KEYS  archived completed sent {key of the insert}*
-- ARGV  task_prefix task_id unique_key number count {argument of the insert}* [now_ms]
-- RETURNS  {code of the insert}: 1 stored, 0 the task with this id has not ended, -1 another task holds the unique lock,
--   -4 the queue is closed, -5 `sent` has another call
-- include: checks hold closed sent
-- `insert` is the script that any client runs to enqueue or schedule a task: the store puts it in front of this one as a
-- function. It writes the record `sent`, too.
local SETS = { archived = KEYS[1], completed = KEYS[2] }
local task_prefix, id, lock, number, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local key = task_prefix .. id
expect(KEYS[1], 'zset')
expect(KEYS[2], 'zset')
local told = number ~= '' and sent_codes_of(redis.call('GET', KEYS[3]), number, id, 1)
if told then return told end
if is_closed(task_prefix) then return { -4 } end

local old = redis.call('HMGET', key, 'state', 'unique_key', 'order_key')
local set = SETS[old[1]]
local has_ended = set and redis.call('ZSCORE', set, id) and not old[3] -- an ordered one may still hold its lane up
if redis.call('EXISTS', key) == 1 and not has_ended then return { 0 } end
local holder = lock ~= '' and redis.call('GET', lock)
if holder and holder ~= id then return { -1 } end

-- Should the insert fail or refuse, what was there stays as it was. The key is outside the tasks' own: next to them, with
-- something behind the id, it could be another task.
local aside = string.sub(task_prefix, 1, -3) .. 'replaced'
if set then redis.call('RENAME', key, aside) end
release(old[2], id)
local keys, args = {}, {}
for i = 4, #KEYS do keys[i - 3] = KEYS[i] end
for i = 1, count do args[i] = ARGV[5 + i] end
args[count + 1] = ARGV[6 + count]
local stored, codes = pcall(insert, keys, args)
if not stored or codes[1] ~= 1 then
  if set then redis.call('RENAME', aside, key) end
  if not stored then error(codes) end
elseif set then
  redis.call('ZREM', set, id)
  redis.call('DEL', aside)
end
return codes

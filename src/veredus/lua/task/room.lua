-- room: store new tasks if the queue has room for all of them: at most `most` tasks wait in it.
-- KEYS  pending scheduled retry sent MORE insert_keys
-- ARGV  queue_prefix most:number number first_id count:number always:number ROWS(ids) task_id unique_key ROWS(arguments) value
-- RETURNS  what the insert returns; only -6 for all: there is no room, and nothing was stored
-- NEEDS  closed sent
-- `insert` is the script that stores the tasks: the store puts it in front of this one as a function. `sent`, `number`, `first_id`
-- and `count` are those of its record: tasks that an earlier try of the call has stored are not refused. Waiting are the tasks
-- that are pending, scheduled (also those parked behind an order key or a limit) or to be retried. `always` is the
-- number of tasks that certainly need room; those of `ids` need none if they exist or if their unique lock is held.
local answered = number ~= '' and sent_codes_of(redis.call('GET', sent), number, first_id, count)
if answered then return answered end

local needed = always
for i, task_id, unique_key in ids() do
  local is_known = redis.call('EXISTS', keys.task(task_id)) == 1 or (unique_key ~= '' and redis.call('EXISTS', unique_key) == 1)
  if not is_known then needed = needed + 1 end
end
if needed > 0 then
  local waiting = redis.call('LLEN', pending) + redis.call('ZCARD', scheduled) + redis.call('ZCARD', retry)
  if waiting + needed > most then return { is_closed(queue_prefix) and -4 or -6 } end
end

local args = {}
for i, value in arguments() do args[i] = value end
args[#args + 1] = given_now_ms
return insert(insert_keys, args)

-- await: the outcome of a task; `channel` is notified when it ends, unless it has.
-- KEYS  task
-- ARGV  channel keep_s:number
-- RETURNS  {state, message, result, progress, cancel, traceback, held}, with an empty state when there is no such task
-- NEEDS  locks marks
-- `channel` is empty for a single look. A listener that has gone stays on the list: a notification without a receiver costs nothing.
-- `keep_s` is set where Go servers may run the task. Go deletes a task without a retention when it is done, and notifies nobody:
-- a task with a listener is kept for that time. 96 is the tag of the message's field `retention`; the last value of a field
-- counts. It is written with one byte more than it needs, which readers do not mind: a Veredus worker sees that nobody sent it.
local state, message, result, progress, cancel, waited, traceback, held = unpack(redis.call('HMGET', task, 'state', 'msg',
  'result', 'progress', 'cancel', 'waited', 'traceback', 'held'))
if not state or not message then return { '', false, false, false, false, false, false } end
if channel ~= '' and state ~= 'completed' and state ~= 'archived' then
  local is_listed = waited and string.find(' ' .. waited .. ' ', ' ' .. channel .. ' ', 1, true)
  if not is_listed then
    redis.call('HSET', task, 'waited', waited and waited .. ' ' .. channel or channel)
    if keep_s > 0 and state ~= 'active' and not field_in(message, 96) then
      redis.call('HSET', task, 'msg', message .. string.char(96, 128 + keep_s, 0))
    end
  end
end
return { state, message, result, progress, cancel and mark_for(task, message, cancel), traceback, held }

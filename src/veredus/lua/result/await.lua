-- await: what a task has come to; as long as it has not ended, `channel` will be told when it does.
-- KEYS  task
-- ARGV  channel [now_ms]
-- RETURNS  {state, message, result, progress, cancel, traceback}, with an empty state when there is no such task
-- `channel` is empty for those who only look. A listener that has gone stays on the list: telling nobody costs nothing.
local task, channel = KEYS[1], ARGV[1]
local fields = redis.call('HMGET', task, 'state', 'msg', 'result', 'progress', 'cancel', 'waited', 'traceback')
local state, waited = fields[1], fields[6]
if not state or not fields[2] then return { '', false, false, false, false, false } end
if channel ~= '' and state ~= 'completed' and state ~= 'archived' then
  local listed = waited and string.find(' ' .. waited .. ' ', ' ' .. channel .. ' ', 1, true)
  if not listed then redis.call('HSET', task, 'waited', waited and waited .. ' ' .. channel or channel) end
end
return { state, fields[2], fields[3], fields[4], fields[5], fields[7] }

-- await: what a task has come to; as long as it has not ended, `channel` will be told when it does.
-- KEYS  task
-- ARGV  channel keep_s [now_ms]
-- RETURNS  {state, message, result, progress, cancel, traceback, held}, with an empty state when there is no such task
-- include: locks marks
-- `channel` is empty for those who only look. A listener that has gone stays on the list: telling nobody costs nothing.
-- `keep_s` is set where Go servers live. Go deletes a task without a retention when it is done, and tells nobody: one that
-- somebody waits for is kept for so long. 96 is the tag of the message's field `retention`; the last value of a field counts.
local task, channel, keep = KEYS[1], ARGV[1], tonumber(ARGV[2])
local fields = redis.call('HMGET', task, 'state', 'msg', 'result', 'progress', 'cancel', 'waited', 'traceback', 'held')
local state, waited = fields[1], fields[6]
if not state or not fields[2] then return { '', false, false, false, false, false, false } end
if channel ~= '' and state ~= 'completed' and state ~= 'archived' then
  local listed = waited and string.find(' ' .. waited .. ' ', ' ' .. channel .. ' ', 1, true)
  if not listed then
    redis.call('HSET', task, 'waited', waited and waited .. ' ' .. channel or channel)
    if keep > 0 and state ~= 'active' and not field_in(fields[2], 96) then
      redis.call('HSET', task, 'msg', fields[2] .. string.char(96, keep))
    end
  end
end
return { state, fields[2], fields[3], fields[4], fields[5] and mark_for(task, fields[2], fields[5]), fields[7], fields[8] }

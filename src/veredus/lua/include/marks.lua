-- NEEDS  nothing

-- mark_for: how a task is to be cancelled, if that was asked of the attempt or wait that has this message; else false. Go
-- leaves the mark in the hash when it retries or archives a task, but rewrites the message. A mark without `cancel_of` was
-- written by an older version and counts.
local function mark_for(key, message, mark)
  local made_for = redis.call('HGET', key, 'cancel_of')
  return (not made_for or made_for == redis.sha1hex(message)) and mark
end

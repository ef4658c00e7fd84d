-- NEEDS  clock

-- notify_waiters: publish what became of a task to those that wait for it. `waited` has their channels; most tasks have none.
-- A channel that begins with > is a client of the gateway that follows the task: its notice is kept in a list until a worker has
-- passed it on. One that begins with ^ is a parent that waits for its children (store/tasks/children.py). It comes last and never fails a settlement: a waiter that gets no notice looks for itself in the end.
-- A task that is kept without a result has no `body`: to its parent that is the same as if it were not kept, and there is nothing to fetch.
local function notify_waiters(waited, verb, key, body)
  if not waited then return end
  local text = verb .. ' ' .. #key .. ' ' .. key .. (body or '')
  for channel in string.gmatch(waited, '%S+') do
    local kind = string.sub(channel, 1, 1)
    local queue_prefix = (kind == '>' or kind == '^') and string.sub(key, 1, string.find(key, '}:t:', 1, true) + 1)
    if kind == '^' then
      -- One wake-up per hundred is enough, because the worker that is woken takes them all; a sweep finds what is left.
      local record = verb == 'completed' and not body and 'done' .. string.sub(text, 10) or text
      local length = verb ~= 'progress' and redis.pcall('RPUSH', keys.ended(), channel .. ' ' .. record)
      if length == 1 then redis.pcall('EXPIRE', keys.ended(), 604800) end
      if type(length) == 'number' and length % 100 == 1 then redis.pcall('PUBLISH', keys.delay_wakeup(), 'ended') end
    elseif kind == '>' then
      local now, _, _, micros = clock()
      local time = whole(math.floor(now / 1000)) .. '.' .. whole(now % 1000 * 1000 + micros)
      redis.pcall('RPUSH', keys.told(), time .. ' ' .. channel .. ' ' .. text)
      redis.pcall('EXPIRE', keys.told(), 86400)
      redis.pcall('PUBLISH', keys.delay_wakeup(), 'told')
    else
      redis.pcall('PUBLISH', channel, text)
    end
  end
end

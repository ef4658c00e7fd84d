-- tell: let those who wait for a task know what became of it. `waited` has their channels; for most tasks, nobody waits.
-- A channel that begins with > is a client of the gateway who follows the task: what is for it is kept in a list, until a
-- worker has passed it on. It comes last and never fails a settlement: whoever is not told looks for himself in the end.
local function tell(waited, verb, key, body)
  if not waited then return end
  local text = verb .. ' ' .. #key .. ' ' .. key .. (body or '')
  for channel in string.gmatch(waited, '%S+') do
    if string.sub(channel, 1, 1) == '>' then
      local queue = string.sub(key, 1, string.find(key, '}:t:', 1, true) + 1)
      local time = redis.call('TIME')
      redis.pcall('RPUSH', queue .. 'told', time[1] .. '.' .. time[2] .. ' ' .. channel .. ' ' .. text)
      redis.pcall('EXPIRE', queue .. 'told', 86400)
      redis.pcall('PUBLISH', queue .. 'delay_wakeup', 'told')
    else
      redis.pcall('PUBLISH', channel, text)
    end
  end
end

-- tell: let those who wait for a task know what became of it. `waited` has their channels; for most tasks, nobody waits.
-- It comes last and never fails a settlement: whoever is not told looks for himself in the end.
local function tell(waited, verb, key, body)
  if not waited then return end
  local text = verb .. ' ' .. #key .. ' ' .. key .. (body or '')
  for channel in string.gmatch(waited, '%S+') do redis.pcall('PUBLISH', channel, text) end
end

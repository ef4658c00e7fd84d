-- NEEDS  clock sets

-- earliest: the first due instant, over our millisecond index and over what Go put into the shared sets; or nil.
local function earliest(due, scheduled, retry)
  local _, first = first_of(due)
  for _, set in ipairs({ scheduled, retry }) do
    local _, second = first_of(set)
    if second and (not first or second * 1000 < first) then first = second * 1000 end
  end
  return first
end

-- announce: wake the forwarders only if it can change what they wait for: nothing was waiting, the new one is earlier,
-- or something is overdue (nobody seems to be awake).
local function announce(channel, before, first_new, now)
  if first_new and (not before or first_new < before or before <= now) then
    redis.pcall('PUBLISH', channel, whole(first_new)) -- a user without this channel has stored the tasks all the same
  end
end

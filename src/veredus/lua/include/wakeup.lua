-- earliest: the first due instant, over our millisecond index and over what Go put into the shared sets; or nil.
local function earliest(due, scheduled, retry)
  local first
  for _, row in ipairs({ { due, 1 }, { scheduled, 1000 }, { retry, 1000 } }) do
    local head = redis.pcall('ZRANGE', row[1], 0, 0, 'WITHSCORES')
    if not head.err and head[2] then
      local at = tonumber(head[2]) * row[2]
      if not first or at < first then first = at end
    end
  end
  return first
end

-- announce: wake the forwarders only if it can change what they wait for: nothing was waiting, the new one is earlier,
-- or something is overdue (nobody seems to be awake).
local function announce(channel, before, first_new, now)
  if first_new and (not before or first_new < before or before <= now) then
    redis.call('PUBLISH', channel, whole(first_new))
  end
end

-- issued_at: when a token was issued, in milliseconds; `-<ms>` means so long ago.
local function issued_at(given, now)
  local issued = tonumber(given)
  if string.sub(given, 1, 1) == '-' then issued = now + issued end
  return string.format('%.0f', issued)
end

-- is_revoked: whether tokens of this user that were issued then are refused.
local function is_revoked(partition, user, issued)
  if not user or user == '' then return false end
  local before = redis.call('GET', partition .. 'rv:' .. user)
  return before and tonumber(issued) < (tonumber(before) or 0)
end

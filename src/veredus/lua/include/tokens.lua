-- NEEDS  clock

-- issued_at: when a token was issued, in milliseconds; `-<ms>` means that long ago.
local function issued_at(given, at)
  local issued = tonumber(given)
  if string.sub(given, 1, 1) == '-' then issued = at + issued end
  return whole(issued)
end

-- is_revoked: whether tokens of this user that were issued then are refused.
local function is_revoked(partition, user, issued)
  if not user or user == '' then return false end
  local before = redis.call('GET', session_keys.revoked(partition, user))
  return before and tonumber(issued) < (tonumber(before) or 0)
end

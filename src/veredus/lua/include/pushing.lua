-- has_room: whether a message of this size fits the quota, which the only one in the log always does; with the policy to drop the oldest, room is made: the floor
-- moves and is remembered as one that a policy moved. With the policy to close, the session ends.
local function has_room(s, size, policy)
  if s.top == s.floor or (s.top - s.floor < s.quota and s.bytes - s.bytes_floor + size <= s.quota_bytes) then
    return true
  end
  if policy == '' then policy = s.policy end
  if policy == 'c' then
    erase(s.sid, 'full')
  elseif policy == 'd' and size <= s.quota_bytes then
    store_new(s)
    while s.top - s.floor >= s.quota or s.bytes - s.bytes_floor + size > s.quota_bytes do
      local entry, expiry = redis.call('LPOP', s.base .. 'o')
      if not entry then return false end
      s.floor = s.floor + 1
      s.floor_ts, expiry, s.bytes_floor = header(entry)
    end
    redis.call('HSET', s.base .. 'm', 'pf', s.floor)
    return true
  end
  return false
end

-- seen: the seq under which this key was pushed to the session before, nil if it was not.
local function seen(s, key)
  local before = key ~= '' and redis.call('GET', s.base .. 'i:' .. key)
  return before and tonumber(before) or nil
end

-- remember: the key has been used now.
local function remember(s, key, seq, dedupe_ms)
  if key ~= '' then redis.call('SET', s.base .. 'i:' .. key, seq, 'PX', dedupe_ms) end
end

-- push: append one message to a session's log, unless its key was used before or there is no room; status and seq.
local function push(s, tail, expiry, key, policy, dedupe_ms, now, now_us)
  if not s then return 'gone', 0 end
  local before = seen(s, key)
  if before then return 'duplicate', before end
  if not has_room(s, #tail + 24, policy) then return 'full', 0 end
  local seq = add(s, tail, expiry == '' and 0 or instant(expiry, now), now_us)
  remember(s, key, seq, dedupe_ms)
  return 'queued', seq
end

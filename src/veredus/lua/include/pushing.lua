-- NEEDS  clock erase log

-- Scripts that push have the argument `dedupe_ms`: how long the key of a push is known.

-- has_room: whether a message of this size fits the quota; the only one in a log always does. The policy to drop the
-- oldest makes room: the floor moves, and is stored as one that the policy moved. The policy to close ends the session.
local function has_room(s, size, policy)
  if s.top == s.floor or (s.top - s.floor < s.quota and s.bytes - s.bytes_floor + size <= s.quota_bytes) then
    return true
  end
  if policy == '' then policy = s.policy end
  if policy == 'c' then
    erase(s.sid, 'full')
  elseif policy == 'd' and size <= s.quota_bytes then
    store_new(s)
    if redis.call('EXISTS', session_keys.waiting(s.base)) == 1 then
      redis.call('HSETNX', session_keys.meta(s.base), field.DROPPED_FROM, s.floor)
    end
    while s.top - s.floor >= s.quota or s.bytes - s.bytes_floor + size > s.quota_bytes do
      local entry, _ = redis.call('LPOP', session_keys.outbox(s.base)), nil
      if not entry then return false end
      s.floor = s.floor + 1
      s.floor_ts, _, s.bytes_floor = header(entry)
    end
    redis.call('HSET', session_keys.meta(s.base), field.POLICY_FLOOR, s.floor)
    return true
  end
  return false
end

-- seen: the seq under which this key was pushed to the session before, or nil.
local function seen(s, dedupe_key)
  local before = dedupe_key ~= '' and redis.call('GET', session_keys.dedupe(s.base, dedupe_key))
  return before and tonumber(before) or nil
end

-- remember: this key has been used now.
local function remember(s, dedupe_key, seq)
  if dedupe_key ~= '' then redis.call('SET', session_keys.dedupe(s.base, dedupe_key), seq, 'PX', dedupe_ms) end
end

-- expiry_at: when a message expires, in milliseconds; 0 for never.
local function expiry_at(expiry) return expiry == '' and 0 or instant(expiry, now) end

-- push: append one message to a session's log, unless its key was used before or there is no room; status and seq.
local function push(s, tail, expiry, dedupe_key, policy)
  if not s then return 'gone', 0 end
  local before = seen(s, dedupe_key)
  if before then return 'duplicate', before end
  if not has_room(s, #tail + HEADER_BYTES, policy) then return 'full', 0 end
  local seq = add(s, tail, expiry_at(expiry))
  remember(s, dedupe_key, seq)
  return 'queued', seq
end

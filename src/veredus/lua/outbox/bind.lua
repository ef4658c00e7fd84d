-- bind: hold messages for the response to a request, which may not have come yet; or append them, if it was given already.
-- KEYS  partition
-- ARGV  channel dedupe_ms hold_ms per_request per_session late_mark count {sid rid side expiry key late on_fail policy tail}* [now_ms]
-- RETURNS  per row {status, seq}: held, queued, late, too_late, duplicate, full or gone
-- include: clock chunks log mail erase pushing binding
-- `side` is B (before) or C (after), `late` s (send) or r (reject), `on_fail` s (send) or d (drop). A held item is the two
-- flags, the expiry and the tail.
local channel, dedupe_ms, hold_ms, per_request, per_session, late_mark =
  ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local count = tonumber(ARGV[7])
local now, now_us = moment(ARGV[8 + count * 9])

local function hold(s, rid, state, side, expiry, key, late, on_fail, tail)
  local m = redis.call('HMGET', s.base .. 'm', 'hb', 'hy')
  local here = redis.call('LLEN', s.base .. 'B:' .. rid) + redis.call('LLEN', s.base .. 'C:' .. rid)
  local held, bytes = tonumber(m[1] or 0), tonumber(m[2] or 0) + #tail
  if here >= per_request or held >= per_session or (held > 0 and bytes > s.quota_bytes) then return { 'full', 0 } end
  local at = expiry == '' and 0 or instant(expiry, now)
  redis.call('RPUSH', s.base .. side .. ':' .. rid, late .. on_fail .. struct.pack('>I8', at) .. tail)
  redis.call('HINCRBY', s.base .. 'm', 'hb', 1)
  redis.call('HINCRBY', s.base .. 'm', 'hy', #tail)
  if not state or string.sub(state, 1, 1) == 'B' then
    redis.call('HSET', s.base .. 'r', rid, 'B:' .. whole(now + hold_ms))
    redis.call('ZADD', partition_of(s.sid) .. 'bd', now + hold_ms, s.sid .. '.' .. rid)
  end
  remember(s, key, 0, dedupe_ms)
  return { 'held', 0 }
end

for i = 1, count do
  local s = look_up(ARGV[i * 9 - 1], now)
  check_list(s)
  if s then redis.call('HLEN', s.base .. 'r') end
end

local replies = {}
for i = 1, count do
  local sid, rid, side, expiry, key, late, on_fail, policy, tail = unpack(ARGV, i * 9 - 1, i * 9 + 7)
  local s = look_up(sid, now)
  local before = s and seen(s, key)
  if not s then
    replies[i] = { 'gone', 0 }
  elseif before then
    replies[i] = { 'duplicate', before }
  else
    local state = redis.call('HGET', s.base .. 'r', rid)
    if not is_answered(s, rid, state) then
      replies[i] = hold(s, rid, state, side, expiry, key, late, on_fail, tail)
    elseif side == 'C' then
      replies[i] = { push(s, tail, expiry, key, policy, dedupe_ms, now, now_us) }
    elseif late == 'r' then
      replies[i] = { 'too_late', 0 }
    else
      local status, seq = push(s, tail .. late_mark, expiry, key, policy, dedupe_ms, now, now_us)
      replies[i] = { status == 'queued' and 'late' or status, seq }
    end
  end
end
save_all()
tell_nodes(channel)
return replies

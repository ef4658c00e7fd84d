-- bind: hold messages for the response to a request, which may not have come yet; or append them, if it was given already.
-- KEYS  sessions
-- ARGV  channel dedupe_ms hold_ms:number per_request:number per_session:number late_mark
--       ROWS sid rid is_before:flag expiry dedupe_key late on_fail policy tail
-- RETURNS  per row {status, seq}: held, queued, late, too_late, duplicate, full or gone
-- NEEDS  binding log pushing request_records
-- A message goes before or after the response. `late` is s (send) or r (reject), `on_fail` s (send) or d (drop).
for i, sid in rows() do
  local s = look_up(sid)
  check_list(s)
  if s then redis.call('HLEN', session_keys.requests(s.base)) end
end

-- hold: keep one message until the response is given.
local function hold(s, record, i)
  local rid, is_before, expiry, dedupe_key, late, on_fail, tail = rows(i)
  local meta = session_keys.meta(s.base)
  local held, held_bytes = unpack(redis.call('HMGET', meta, field.HELD, field.HELD_BYTES))
  held = tonumber(held or 0)
  local bytes = tonumber(held_bytes or 0) + #tail
  if held_count(s, rid) >= per_request or held >= per_session or (held > 0 and bytes > s.quota_bytes) then
    return { 'full', 0 }
  end
  local list = is_before and session_keys.befores(s.base, rid) or session_keys.afters(s.base, rid)
  redis.call('RPUSH', list, pack_held(late, on_fail, expiry_at(expiry), tail))
  redis.call('HINCRBY', meta, field.HELD, 1)
  redis.call('HINCRBY', meta, field.HELD_BYTES, #tail)
  if not record or kind_of(record) == 'early' then wait_for_request(s, rid, now + hold_ms) end
  remember(s, dedupe_key, 0)
  return { 'held', 0 }
end

-- append: put one message into the log, because the response is there.
local function append(s, i)
  local is_before, expiry, dedupe_key, late, policy, tail = rows(i)
  if not is_before then return { push(s, tail, expiry, dedupe_key, policy) } end
  if late == 'r' then return { 'too_late', 0 } end
  local status, seq = push(s, tail .. late_mark, expiry, dedupe_key, policy)
  return { status == 'queued' and 'late' or status, seq }
end

local replies = {}
for i, sid, rid, dedupe_key in rows() do
  local s = look_up(sid)
  local before = s and seen(s, dedupe_key)
  if not s then
    replies[i] = { 'gone', 0 }
  elseif before then
    replies[i] = { 'duplicate', before }
  else
    local record = redis.call('HGET', session_keys.requests(s.base), rid)
    replies[i] = is_answered(s, rid, record) and append(s, i) or hold(s, record, i)
  end
end
save_all()
tell_nodes(channel)
return replies

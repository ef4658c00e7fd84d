-- attach: resume a session on another connection, at the client's cursor if it fits the log, else from its floor.
-- KEYS  sessions
-- ARGV  channel sid user secret next_secret grace_ms:number epoch seq:number ts:number next_epoch node connection
--       first:number max_bytes:number rid_floor:number issued ROWS(groups) group
-- RETURNS  {result, reason} (unknown, closed, forbidden or revoked), or {result, reason, epoch, seq, ts, top, generation, gap_from, gap_to, {rid state}*, {entry}*}
-- NEEDS  checks excerpt floors grant grow log request_records tokens
-- The presented secret stays valid for as long as the session would outlive the connection: the welcome with the next
-- one may be lost, and the client away for a while.
-- If that is not the newest secret, the newest is kept too: two hellos of one client may be executed in either order, and
-- the client may have been welcomed with the older one.
-- The groups are those that the client's token names now. A session that an operator has ended is closed, not unknown.
-- The rules for the cursor are those of model/delivery.judge_cursor. If the cursor is only too old, the log keeps its
-- epoch: the hello may have been executed late, and its client goes on with a newer cursor.
local issued_ms = issued_at(issued, now)
local partition, base = partition_of(sid), base_of(sid)
local meta, outbox, attached = session_keys.meta(base), session_keys.outbox(base), session_keys.attached(partition, node)
local ends, owner, newest, previous, older, secrets_until, log_epoch, generation, last_node, floor_ts, policy_floor, top,
  last_ts, bytes, ttl = unpack(redis.call('HMGET', meta, field.ENDS, field.USER, field.SECRET, field.PREVIOUS_SECRET,
    field.OLDER_SECRETS, field.SECRETS_UNTIL, field.EPOCH, field.GENERATION, field.NODE, field.FLOOR_TS,
    field.POLICY_FLOOR, field.TOP, field.LAST_TS, field.BYTES, field.TTL))
if not top then
  local reason = string.match(redis.call('GET', session_keys.ended(base)) or '', '^%w+ (disconnected.*)')
  return reason and { 'closed', reason } or { 'unknown', 'unknown' }
end
if ends ~= '0' and tonumber(ends) <= now then return { 'unknown', 'expired' } end
if owner ~= user then return { 'forbidden', 'user' } end
local known = ' ' .. (previous or '') .. ' ' .. (older or '') .. ' '
local is_older = newest ~= secret and secret ~= '' and string.find(known, ' ' .. secret .. ' ', 1, true)
  and tonumber(secrets_until) > now
if newest ~= secret and not is_older then return { 'forbidden', 'secret' } end
if is_revoked(partition, user, issued_ms) then return { 'revoked', 'revoked' } end
expect(session_keys.expiries(partition), 'zset')
expect(attached, 'set')
expect(sessions, 'zset')
expect(session_keys.user(partition, user), 'zset')
if last_node ~= '' then expect(session_keys.attached(partition, last_node), 'set') end
check_records(base)
check_grant(partition, base)

local s = look_up(sid)
local floor = s.floor
floor_ts, policy_floor, generation = tonumber(floor_ts), tonumber(policy_floor), generation + 0
local secrets_end = now + math.max(grace_ms, tonumber(ttl))
local reason, gap_from, gap_to = '', 0, 0
local is_whole = redis.call('LLEN', outbox) == s.top - floor
if not is_whole then
  reason = 'truncated'
elseif epoch ~= '' and epoch ~= log_epoch then
  reason = 'epoch'
elseif seq > s.top then
  reason = 'ahead'
elseif seq < floor then
  if floor <= policy_floor then gap_from, gap_to = seq + 1, floor else reason = 'truncated' end
elseif seq > 0 then
  local here = floor_ts
  if seq > floor then here = header(redis.call('LINDEX', outbox, seq - floor - 1)) end
  if here ~= ts then reason = 'fork' end
end

may_grow(base)
if reason ~= '' then
  epoch = next_epoch
  if is_whole and reason == 'truncated' then epoch = log_epoch end
  redis.call('HSET', meta, field.EPOCH, epoch)
  if not is_whole then
    redis.call('DEL', outbox)
    floor, floor_ts = s.top, tonumber(last_ts)
    redis.call('HSET', meta, field.FLOOR, top, field.FLOOR_TS, last_ts, field.BYTES_FLOOR, bytes)
  end
else
  epoch = log_epoch
  if seq > floor then
    cut(s, seq)
    save(s)
    floor, floor_ts = seq, s.floor_ts
  end
end
if last_node ~= '' then
  redis.call('SREM', session_keys.attached(partition, last_node), sid)
  kick(last_node, sid, generation, 'superseded')
end
generation = generation + 1
redis.call('HSET', meta, field.GENERATION, generation, field.NODE, node, field.CONNECTION, connection,
  field.STATE, field.ATTACHED, field.ENDS, 0, field.SECRET, next_secret, field.PREVIOUS_SECRET, secret,
  field.SECRETS_UNTIL, secrets_end, field.TOKEN_ISSUED, issued_ms,
  field.OLDER_SECRETS, is_older and string.sub(newest .. known, 1, 325) or '')
redis.call('ZREM', session_keys.expiries(partition), sid)
redis.call('SADD', attached, sid)
redis.call('ZADD', sessions, 0, sid)
if user ~= '' then redis.call('ZADD', session_keys.user(partition, user), now, sid) end
if rid_floor > 0 then raise_rid_floor(s, rid_floor) end
grant(base, sid)

local requests, states = redis.call('HGETALL', session_keys.requests(base)), {}
for i = 1, #requests, 2 do
  local rid, kind = requests[i], kind_of(requests[i + 1])
  if kind ~= 'early' then
    states[#states + 1] = rid
    states[#states + 1] = kind == 'accepted' and 'open' or 'done'
  end
end
local entries = excerpt(outbox, floor, floor + 1, first, max_bytes)
tell_nodes(channel)
return { reason == '' and 'resumed' or 'reset', reason, epoch, floor, floor_ts, s.top, generation, gap_from, gap_to, states,
  entries }

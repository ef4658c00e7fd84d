-- attach: resume a session on another connection, at the client's cursor if it fits the log, else in a new epoch.
-- KEYS  partition
-- ARGV  channel sid user secret next_secret grace_ms epoch seq ts next_epoch node connection first max_bytes rid_floor issued count {group}* [now_ms]
-- RETURNS  {result, reason} (unknown, closed, forbidden or revoked), or {result, reason, epoch, seq, ts, top, generation, gap_from, gap_to, {rid state}*, {entry}*}
-- include: checks chunks log floors excerpt grant grow tokens
-- The secret that was presented stays good for as long as the session would outlive the connection: the welcome with the
-- next one may be lost, and the client away for a while.
-- If another secret than the last one is presented, that one is kept too (`ko`): two hellos of one client may be executed in
-- either order, and the one that it was welcomed with may be the older one.
-- The groups are those that the client's token names now. A session that an operator has ended is closed, not unknown.
-- The rules for the cursor are those of model/delivery.judge_cursor.
local channel, sid, user, secret, next_secret, grace, epoch = unpack(ARGV, 1, 7)
local seq, ts, next_epoch, node, connection = tonumber(ARGV[8]), tonumber(ARGV[9]), unpack(ARGV, 10, 12)
local first, max_bytes, rid_floor = ARGV[13], ARGV[14], tonumber(ARGV[15])
local count, groups = tonumber(ARGV[17]), {}
for i = 18, 17 + count do groups[#groups + 1] = ARGV[i] end
local now = moment(ARGV[18 + count])
local issued = issued_at(ARGV[16], now)
local partition = partition_of(sid)
local base = partition .. 's:' .. sid .. ':'
local m = redis.call('HMGET', base .. 'm', 'x', 'u', 'k', 'k2', 'kt', 'e', 'g', 'n', 'f', 'ft', 'pf', 's', 'lt', 'cb',
  'ttl', 'ko')
if not m[12] then
  local reason = string.match(redis.call('GET', base .. 'e') or '', '^%w+ (disconnected.*)')
  return reason and { 'closed', reason } or { 'unknown', 'unknown' }
end
if m[1] ~= '0' and tonumber(m[1]) <= now then return { 'unknown', 'expired' } end
if m[2] ~= user then return { 'forbidden', 'user' } end
local older = ' ' .. (m[4] or '') .. ' ' .. (m[16] or '') .. ' '
local is_older = m[3] ~= secret and secret ~= '' and string.find(older, ' ' .. secret .. ' ', 1, true)
  and tonumber(m[5]) > now
if m[3] ~= secret and not is_older then return { 'forbidden', 'secret' } end
if is_revoked(partition, user, issued) then return { 'revoked', 'revoked' } end
expect(partition .. 'x', 'zset')
expect(partition .. 'n:' .. node, 'set')
expect(base .. 'g', 'set')

local s = look_up(sid, now)
local floor, floor_ts, policy_floor, top = s.floor, tonumber(m[10]), tonumber(m[11]), s.top
local reason, gap_from, gap_to = '', 0, 0
local whole_list = redis.call('LLEN', base .. 'o') == top - floor
if not whole_list then
  reason = 'truncated'
elseif epoch ~= '' and epoch ~= m[6] then
  reason = 'epoch'
elseif seq > top then
  reason = 'ahead'
elseif seq < floor then
  if floor <= policy_floor then gap_from, gap_to = seq + 1, floor else reason = 'truncated' end
elseif seq > 0 then
  local here = floor_ts
  if seq > floor then here = header(redis.call('LINDEX', base .. 'o', seq - floor - 1)) end
  if here ~= ts then reason = 'fork' end
end

may_grow(base)
if reason ~= '' then
  epoch = next_epoch
  redis.call('HSET', base .. 'm', 'e', epoch)
  if not whole_list then
    redis.call('DEL', base .. 'o')
    floor, floor_ts = top, tonumber(m[13])
    redis.call('HSET', base .. 'm', 'f', m[12], 'ft', m[13], 'cf', m[14])
  end
else
  epoch = m[6]
  if seq > floor then
    cut(s, seq)
    save(s)
    floor, floor_ts = seq, s.floor_ts
  end
end
local generation = tonumber(m[7]) + 1
if m[8] ~= '' then
  redis.call('SREM', partition .. 'n:' .. m[8], sid)
  kick(m[8], sid, tonumber(m[7]), 'superseded')
end
redis.call('HSET', base .. 'm', 'g', generation, 'n', node, 'c', connection, 'st', 'a', 'x', 0, 'k', next_secret,
  'k2', secret, 'kt', now + math.max(tonumber(grace), tonumber(m[15])), 'ti', issued,
  'ko', is_older and string.sub(m[3] .. older, 1, 325) or '')
redis.call('ZREM', partition .. 'x', sid)
redis.call('SADD', partition .. 'n:' .. node, sid)
redis.call('ZADD', partition .. 'all', 0, sid)
if user ~= '' then redis.call('ZADD', partition .. 'u:' .. user, now, sid) end
if rid_floor > 0 then raise_rid_floor(s, rid_floor) end
grant(base, sid, groups)

local requests, states = redis.call('HGETALL', base .. 'r'), {}
for i = 1, #requests, 2 do
  local state = string.sub(requests[i + 1], 1, 1)
  if state ~= 'B' then
    states[#states + 1] = requests[i]
    states[#states + 1] = state == 'A' and 'open' or 'done'
  end
end
local entries = excerpt(base .. 'o', floor, floor + 1, first, max_bytes)
tell_nodes(channel)
return { reason == '' and 'resumed' or 'reset', reason, epoch, floor, floor_ts, top, generation, gap_from, gap_to, states,
  entries }

-- create: a new session, attached to a connection, with what waited for the user as its first entries.
-- KEYS  sessions
-- ARGV  channel sid user epoch node connection secret quota_entries quota_bytes policy ttl_ms max_sessions:number
--       when_full issued ROWS(groups) group
-- RETURNS  {top, {sid of an older session that was ended}*}, 'revoked', or nothing if the user has too many
-- NEEDS  checks chunks clock erase grant log mail tokens
local issued_ms = issued_at(issued, now)
local partition, base = partition_of(sid), base_of(sid)
local meta, attached = session_keys.meta(base), session_keys.attached(partition, node)
local index, box = session_keys.user(partition, user), session_keys.mailbox(partition, user)
if redis.call('EXISTS', meta) == 1 then return redis.error_reply('ERR the session exists already') end
expect(sessions, 'zset')
expect(attached, 'set')
expect(box, 'list')
check_grant(partition, base)
if is_revoked(partition, user, issued_ms) then return 'revoked' end

local live, replaced, letters = {}, {}, {}
if user ~= '' then
  for _, other in ipairs(redis.call('ZRANGE', index, 0, -1)) do
    if look_up(other) then live[#live + 1] = other else erase(other, 'expired') end
  end
  if max_sessions > 0 and #live >= max_sessions then
    if when_full == 'refuse' then return false end
    -- Sessions without a client end first, then the others; both in the order of their last attach.
    local order = {}
    for _, is_left in ipairs({ true, false }) do
      for _, other in ipairs(live) do
        if (FOUND[other].node == '') == is_left then order[#order + 1] = other end
      end
    end
    for i = 1, #live - max_sessions + 1 do
      erase(order[i], 'replaced')
      replaced[i] = order[i]
    end
  end
  letters = redis.call('LRANGE', box, 0, -1)
end

-- A session that its client has left may never be resumed: what waits in its log comes here as well, unless another
-- session has acknowledged it.
local left, is_known, noted_by = {}, {}, {}
-- read_notes: what is noted in those of the user's sessions that have a client, or have none.
local function read_notes(is_left)
  for _, other in ipairs(live) do
    if FOUND[other] and (FOUND[other].node == '') == is_left then
      local noted = mail().noted(session_keys.session_prefix(partition, other))
      for _, one in ipairs(noted) do is_known[one.id] = is_known[one.id] or not one.tail end
      if is_left and #noted > 0 then noted_by[#noted_by + 1] = noted end
    end
  end
end
read_notes(true)
if #noted_by > 0 then read_notes(false) end
for _, noted in ipairs(noted_by) do
  for _, one in ipairs(noted) do
    if one.tail and one.ends > now and not is_known[one.id] then
      left[#left + 1] = one
      is_known[one.id] = true
    end
  end
end

delete_all({ session_keys.outbox(base), session_keys.requests(base), session_keys.session_groups(base),
  session_keys.waiting(base), box })
-- The fields that every push reads come first: Redis searches a small hash from its beginning.
redis.call('HSET', meta, field.TOP, 0, field.ENDS, 0, field.LAST_TS, 0, field.FLOOR, 0, field.BYTES, 0,
  field.BYTES_FLOOR, 0, field.NODE, node, field.QUOTA, quota_entries, field.QUOTA_BYTES, quota_bytes,
  field.POLICY, policy, field.EPOCH, epoch, field.GENERATION, 1, field.FLOOR_TS, 0, field.POLICY_FLOOR, 0,
  field.CONNECTION, connection, field.SECRET, secret, field.USER, user, field.STATE, field.ATTACHED, field.TTL, ttl_ms,
  field.CREATED, now, field.TOKEN_ISSUED, issued_ms)
redis.call('ZADD', sessions, 0, sid)
redis.call('SADD', attached, sid)
if user ~= '' then redis.call('ZADD', index, now, sid) end
grant(base, sid)

FOUND[sid] = nil
local s = look_up(sid)
for _, noted in ipairs(left) do mail().note(s, noted.id, add(s, noted.tail, noted.expiry), noted.ends) end
for i, letter in ipairs(letters) do
  local ends, expiry, _, start = header(letter)
  if ends > now then
    mail().note(s, whole(now_us) .. '.' .. i, add(s, string.sub(letter, start), expiry), ends)
  end
end
save_all()
tell_nodes(channel)
return { s.top, replaced }

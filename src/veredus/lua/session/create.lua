-- create: a new session, attached to a connection, with what waited for the user as its first entries.
-- KEYS  partition
-- ARGV  channel sid user epoch node connection secret quota_entries quota_bytes policy ttl_ms max_sessions when_full issued count {group}* [now_ms]
-- RETURNS  {top, {sid of an older session that had to give way}*}, 'revoked', or nothing if the user has too many
-- include: checks chunks log mail erase grant tokens
local channel, sid, user, epoch, node, connection, secret, quota, quota_bytes, policy, ttl = unpack(ARGV, 1, 11)
local max_sessions, when_full, count = tonumber(ARGV[12]), ARGV[13], tonumber(ARGV[15])
local now, now_us = moment(ARGV[16 + count])
local issued = issued_at(ARGV[14], now)
local partition = partition_of(sid)
local base, index, box = partition .. 's:' .. sid .. ':', partition .. 'u:' .. user, partition .. 'mail:' .. user
if redis.call('EXISTS', base .. 'm') == 1 then return redis.error_reply('ERR the session exists already') end
expect(partition .. 'all', 'zset')
expect(partition .. 'n:' .. node, 'set')
expect(box, 'list')
if is_revoked(partition, user, issued) then return 'revoked' end

local live, replaced, letters = {}, {}, {}
if user ~= '' then
  for _, other in ipairs(redis.call('ZRANGE', index, 0, -1)) do
    if look_up(other, now) then live[#live + 1] = other else erase(other, 'expired') end
  end
  if max_sessions > 0 and #live >= max_sessions then
    if when_full == 'refuse' then return false end
    -- Those that no client has now give way first; either kind in the order of their last attach.
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

-- What waits in the log of a session that its client has left, and may not come back to, comes here as well.
local left = {}
for _, other in ipairs(live) do
  if FOUND[other] and FOUND[other].node == '' then
    for _, row in ipairs(mail().noted(partition .. 's:' .. other .. ':')) do
      if row[4] and row[3] > now and not left[row[1]] then
        left[#left + 1] = row
        left[row[1]] = true
      end
    end
  end
end

delete_all({ base .. 'o', base .. 'r', base .. 'g', base .. 'w', box })
-- What every push reads comes first: Redis looks for the fields of a small hash from its beginning.
redis.call('HSET', base .. 'm', 's', 0, 'x', 0, 'lt', 0, 'f', 0, 'cb', 0, 'cf', 0, 'n', node, 'q', quota,
  'qb', quota_bytes, 'po', policy, 'e', epoch, 'g', 1, 'ft', 0, 'pf', 0, 'c', connection, 'k', secret, 'u', user,
  'st', 'a', 'ttl', ttl, 'cr', now, 'ti', issued)
redis.call('ZADD', partition .. 'all', 0, sid)
redis.call('SADD', partition .. 'n:' .. node, sid)
if user ~= '' then redis.call('ZADD', index, now, sid) end
local groups = {}
for i = 16, 15 + count do groups[#groups + 1] = ARGV[i] end
grant(base, sid, groups)

FOUND[sid] = nil
local s = look_up(sid, now)
for _, row in ipairs(left) do mail().note(s, row[1], add(s, row[4], row[5], now_us), row[3]) end
for i, item in ipairs(letters) do
  local ends, expiry = header(item)
  if ends > now then
    mail().note(s, string.format('%.0f.%d', now_us, i), add(s, string.sub(item, 25), expiry, now_us), ends)
  end
end
save_all()
tell_nodes(channel)
return { s.top, replaced }

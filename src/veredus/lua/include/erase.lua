-- erase: end a session: every key and every index entry goes; its connection, if it has one, is told why. What waits for
-- its user goes elsewhere, perhaps to other sessions: the script saves them. Needs mail.
local function erase(sid, reason)
  local partition = partition_of(sid)
  local base = partition .. 's:' .. sid .. ':'
  local m = redis.call('HMGET', base .. 'm', 'u', 'n', 'g')
  if FOUND[sid] then store_new(FOUND[sid]) end -- it may have been given what waited in a session that ended just before
  if m[1] and m[1] ~= '' and redis.call('EXISTS', base .. 'w') == 1 then mail().give_back(partition, sid, m[1]) end
  local keys = { base .. 'm', base .. 'o', base .. 'r', base .. 'g', base .. 'w', base .. 'n' }
  local requests = redis.call('HGETALL', base .. 'r')
  for i = 1, #requests, 2 do
    local state = string.sub(requests[i + 1], 1, 1)
    if state ~= 'D' then
      redis.call('ZREM', partition .. (state == 'A' and 'dl' or 'bd'), sid .. '.' .. requests[i])
      keys[#keys + 1] = base .. 'B:' .. requests[i]
      keys[#keys + 1] = base .. 'C:' .. requests[i]
    end
  end
  for _, group in ipairs(redis.call('SMEMBERS', base .. 'g')) do end_membership(partition, group, sid) end
  delete_all(keys)
  redis.call('ZREM', partition .. 'all', sid)
  redis.call('ZREM', partition .. 'x', sid)
  if m[1] and m[1] ~= '' then redis.call('ZREM', partition .. 'u:' .. m[1], sid) end
  if m[2] and m[2] ~= '' then
    redis.call('SREM', partition .. 'n:' .. m[2], sid)
    kick(m[2], sid, tonumber(m[3]), reason)
  end
  FOUND[sid] = false
end

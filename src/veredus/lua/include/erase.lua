-- NEEDS  chunks log mail request_records

-- erase: end a session: delete its keys and index entries, and tell its connection why. What waits for its user is given
-- to the user's other sessions, which the script saves.
local function erase(sid, reason)
  local partition, base = partition_of(sid), base_of(sid)
  local user, node, generation = unpack(redis.call('HMGET', session_keys.meta(base), field.USER, field.NODE,
    field.GENERATION))
  if FOUND[sid] then store_new(FOUND[sid]) end -- it may have been given messages of a session that ended just before
  if user and user ~= '' and redis.call('EXISTS', session_keys.waiting(base)) == 1 then
    mail().give_back(partition, sid, user)
  end
  local dead = {
    session_keys.meta(base), session_keys.outbox(base), session_keys.requests(base), session_keys.session_groups(base),
    session_keys.waiting(base), session_keys.told(base),
  }
  local requests = redis.call('HGETALL', session_keys.requests(base))
  for i = 1, #requests, 2 do
    local rid, kind = requests[i], kind_of(requests[i + 1])
    if kind ~= 'answered' then
      local index = kind == 'accepted' and session_keys.deadlines(partition) or session_keys.early_binds(partition)
      redis.call('ZREM', index, request_name(sid, rid))
      dead[#dead + 1] = session_keys.befores(base, rid)
      dead[#dead + 1] = session_keys.afters(base, rid)
    end
  end
  for _, group in ipairs(redis.call('SMEMBERS', session_keys.session_groups(base))) do
    end_membership(partition, group, sid)
  end
  delete_all(dead)
  redis.call('ZREM', session_keys.sessions(partition), sid)
  redis.call('ZREM', session_keys.expiries(partition), sid)
  if user and user ~= '' then redis.call('ZREM', session_keys.user(partition, user), sid) end
  if node and node ~= '' then
    redis.call('SREM', session_keys.attached(partition, node), sid)
    kick(node, sid, tonumber(generation), reason)
  end
  FOUND[sid] = false
end

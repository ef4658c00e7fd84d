-- NEEDS  chunks clock log

-- What waits for a user: in the mailbox, or in the logs of the user's sessions. Each session notes the number of such an
-- entry and until when it waits (id -> `<seq> <until>`), so that it is not lost if the session ends before its client has
-- acknowledged it. Once one session has acknowledged it, it no longer waits.
local MAIL

-- mail: the functions below, made when they are needed: most scripts that may end a session seldom do.
local function mail()
  if MAIL then return MAIL end
  MAIL = {}

  -- live_until: a key lives at least until then.
  local function live_until(key, ends)
    if redis.call('PTTL', key) < ends - now then redis.call('PEXPIREAT', key, whole(ends)) end
  end

  -- put: append to a mailbox, which ends when its last message has waited long enough.
  function MAIL.put(box, tail, expiry, ends)
    local last, bytes, _ = redis.call('LINDEX', box, -1), 0, nil
    if last then _, _, bytes = header(last) end
    redis.call('RPUSH', box, struct.pack('>I8I8I8', ends, expiry, bytes + #tail + HEADER_BYTES) .. tail)
    live_until(box, ends)
  end

  -- forget: these ids are delivered: no session of the user needs its note of them.
  local function forget(partition, user, ids)
    if #ids == 0 then return end
    for _, sid in ipairs(redis.call('ZRANGE', session_keys.user(partition, user), 0, -1)) do
      in_chunks('HDEL', session_keys.waiting(session_keys.session_prefix(partition, sid)), ids)
    end
  end

  -- note: this entry of a session waits for its user. At every 64th note, those of acknowledged entries are deleted.
  function MAIL.note(s, id, seq, ends)
    local notes = session_keys.waiting(s.base)
    redis.call('HSET', notes, id, whole(seq) .. ' ' .. whole(ends))
    live_until(notes, ends)
    if redis.call('HLEN', notes) % 64 > 0 then return end
    local ids = {}
    for _, noted in ipairs(MAIL.noted(s.base)) do
      if not noted.tail and noted.seq <= s.floor then ids[#ids + 1] = noted.id end
    end
    forget(s.partition, redis.call('HGET', session_keys.meta(s.base), field.USER), ids)
  end

  -- noted: what waits in a session, by number: {id, seq, ends, tail, expiry}; no tail if its client has acknowledged it. What
  -- was dropped because the log was full does not wait there any more.
  function MAIL.noted(base)
    local notes, found = redis.call('HGETALL', session_keys.waiting(base)), {}
    if #notes == 0 then return found end
    local floor, from, to = tonumber(redis.call('HGET', session_keys.meta(base), field.FLOOR) or 0), dropped_range(base)
    for i = 1, #notes, 2 do
      local seq, ends = string.match(notes[i + 1], '^(%d+) (%d+)$')
      if seq and (tonumber(seq) <= from or tonumber(seq) > to) then
        local noted = { id = notes[i], seq = tonumber(seq), ends = tonumber(ends) }
        local entry = noted.seq > floor and redis.call('LINDEX', session_keys.outbox(base), noted.seq - floor - 1)
        if entry then
          local _, expiry, _, start = header(entry)
          noted.tail, noted.expiry = string.sub(entry, start), expiry
        end
        found[#found + 1] = noted
      end
    end
    table.sort(found, function(a, b) return a.seq < b.seq end)
    return found
  end

  -- give_back: a session ends: what its client has not acknowledged goes to the user's other sessions, or into the
  -- mailbox if there are none. If it waits in a session whose client is here, or was acknowledged in one, it stays there.
  function MAIL.give_back(partition, sid, user)
    local others = {}
    for _, other in ipairs(redis.call('ZRANGE', session_keys.user(partition, user), 0, -1)) do
      if other ~= sid then others[#others + 1] = other end
    end
    local delivered = {}
    for _, noted in ipairs(MAIL.noted(session_keys.session_prefix(partition, sid))) do
      local is_kept, is_here, without = false, false, {}
      for _, other in ipairs(others) do
        local s = look_up(other)
        local note = s and redis.call('HGET', session_keys.waiting(s.base), noted.id)
        local seq, from, to = note and tonumber(string.match(note, '^%d+')), 0, 0
        if seq then from, to = dropped_range(s.base) end
        if seq and (seq <= from or seq > to) then
          is_kept, is_here = true, is_here or s.node ~= '' or seq <= s.floor
        elseif s then
          without[#without + 1] = s
        end
      end
      if not noted.tail then delivered[#delivered + 1] = noted.id end
      if noted.tail and not is_here and noted.ends > now then
        for _, s in ipairs(without) do
          MAIL.note(s, noted.id, add(s, noted.tail, noted.expiry), noted.ends)
          is_kept = true
        end
        if not is_kept then MAIL.put(session_keys.mailbox(partition, user), noted.tail, noted.expiry, noted.ends) end
      end
    end
    forget(partition, user, delivered)
  end

  return MAIL
end

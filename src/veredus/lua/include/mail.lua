-- What waits for a user: in the mailbox, or in the logs of the user's sessions. Each session that has such an entry notes its
-- number and how long it waits (`w`: id -> `<seq> <until>`), so that it is not lost if the session ends before its client
-- has acknowledged it. Once one session has acknowledged it, it waits no longer. Needs chunks and log.
local MAIL

-- mail: the functions below, made when they are needed: most scripts only might end a session.
local function mail()
  if MAIL then return MAIL end
  MAIL = {}

  -- live_until: a key lives at least until then.
  local function live_until(key, ends)
    if redis.call('PTTL', key) < ends - NOW then redis.call('PEXPIREAT', key, string.format('%.0f', ends)) end
  end

  -- put: at the end of a mailbox, which goes when its last message has waited long enough.
  function MAIL.put(box, tail, expiry, ends)
    local last, bytes, _ = redis.call('LINDEX', box, -1), 0, nil
    if last then _, _, bytes = header(last) end
    redis.call('RPUSH', box, struct.pack('>I8I8I8', ends, expiry, bytes + #tail + 24) .. tail)
    live_until(box, ends)
  end

  -- forget: these ids are delivered: no session of the user needs its note of them.
  local function forget(partition, user, ids)
    if #ids == 0 then return end
    for _, sid in ipairs(redis.call('ZRANGE', partition .. 'u:' .. user, 0, -1)) do
      in_chunks('HDEL', partition .. 's:' .. sid .. ':w', ids)
    end
  end

  -- note: this entry of a session waits for its user. Now and then, notes of what was acknowledged are forgotten.
  function MAIL.note(s, id, seq, ends)
    redis.call('HSET', s.base .. 'w', id, string.format('%.0f %.0f', seq, ends))
    live_until(s.base .. 'w', ends)
    if redis.call('HLEN', s.base .. 'w') % 64 > 0 then return end
    local ids = {}
    for _, row in ipairs(MAIL.noted(s.base)) do
      if not row[4] and row[2] <= s.floor then ids[#ids + 1] = row[1] end
    end
    forget(partition_of(s.sid), redis.call('HGET', s.base .. 'm', 'u'), ids)
  end

  -- noted: what waits in a session, by number: {id, seq, until, tail, expiry}, without a tail where its client has
  -- acknowledged it.
  function MAIL.noted(base)
    local notes, rows = redis.call('HGETALL', base .. 'w'), {}
    local floor = #notes > 0 and tonumber(redis.call('HGET', base .. 'm', 'f') or 0)
    for i = 1, #notes, 2 do
      local seq, ends = string.match(notes[i + 1], '^(%d+) (%d+)$')
      if seq then
        local row = { notes[i], tonumber(seq), tonumber(ends) }
        local entry = row[2] > floor and redis.call('LINDEX', base .. 'o', row[2] - floor - 1)
        if entry then
          local _, expiry = header(entry)
          row[4], row[5] = string.sub(entry, 25), expiry
        end
        rows[#rows + 1] = row
      end
    end
    table.sort(rows, function(a, b) return a[2] < b[2] end)
    return rows
  end

  -- give_back: a session ends: what nobody has acknowledged goes to the user's other sessions, or into the mailbox if there
  -- are none.
  function MAIL.give_back(partition, sid, user)
    local others = {}
    for _, other in ipairs(redis.call('ZRANGE', partition .. 'u:' .. user, 0, -1)) do
      if other ~= sid then others[#others + 1] = other end
    end
    local delivered = {}
    for _, row in ipairs(MAIL.noted(partition .. 's:' .. sid .. ':')) do
      local id, _, ends, tail, expiry = unpack(row, 1, 5)
      local is_elsewhere = false
      for _, other in ipairs(others) do
        if redis.call('HEXISTS', partition .. 's:' .. other .. ':w', id) == 1 then is_elsewhere = true end
      end
      if not tail then delivered[#delivered + 1] = id end
      if tail and not is_elsewhere and ends > NOW then
        for _, other in ipairs(others) do
          local s = look_up(other, NOW)
          if s then
            MAIL.note(s, id, add(s, tail, expiry, NOW_US), ends)
            is_elsewhere = true
          end
        end
        if not is_elsewhere then MAIL.put(partition .. 'mail:' .. user, tail, expiry, ends) end
      end
    end
    forget(partition, user, delivered)
  end

  return MAIL
end

-- NEEDS  clock

-- Sessions and their logs. A script first reads every session that it needs, so that damage stops it before the first
-- write. It changes them in memory and saves each once. One message per node says what was appended.
local FOUND, HINTS = {}, {}
-- The three numbers in front of an entry.
local HEADER_BYTES = 24
local now, _, _, micros = clock()
local now_us = now * 1000 + micros

-- partition_of: the prefix of a partition's keys. A session's id begins with the tag of its partition.
local function partition_of(sid) return session_keys.prefix(string.sub(sid, 1, 4)) end

-- base_of: the prefix of a session's keys.
local function base_of(sid) return session_keys.session_prefix(partition_of(sid), sid) end

-- look_up: a session that has not ended, read once per call; false if there is none.
local function look_up(sid)
  local s = FOUND[sid]
  if s ~= nil then return s end
  local partition = partition_of(sid)
  local base = session_keys.session_prefix(partition, sid)
  local top, ends, last_ts, floor, bytes, bytes_floor, node, quota, quota_bytes, policy = unpack(redis.call('HMGET',
    session_keys.meta(base), field.TOP, field.ENDS, field.LAST_TS, field.FLOOR, field.BYTES, field.BYTES_FLOOR,
    field.NODE, field.QUOTA, field.QUOTA_BYTES, field.POLICY))
  if not top or (ends ~= '0' and tonumber(ends) <= now) then
    s = false
  else
    s = {
      sid = sid, partition = partition, base = base, top = tonumber(top), last_ts = tonumber(last_ts),
      floor = tonumber(floor), bytes = tonumber(bytes), bytes_floor = tonumber(bytes_floor), node = node,
      quota = tonumber(quota), quota_bytes = tonumber(quota_bytes), policy = policy, run = {}, stored = 0,
    }
  end
  FOUND[sid] = s
  return s
end

-- check_list: stop before the first write of a call for several sessions if the list of one is damaged.
local function check_list(s)
  if s then redis.call('LLEN', session_keys.outbox(s.base)) end
end

-- end_membership: remove a session from a group; returns whether it was a member. After the last member of this
-- partition, a sweep removes the partition from the group's list of partitions, which is in another slot.
local function end_membership(partition, group, sid)
  local members = session_keys.group(partition, group)
  local was_member = redis.call('ZREM', members, sid) == 1
  if was_member and redis.call('EXISTS', members) == 0 then
    redis.call('ZADD', session_keys.emptied(partition), 'NX', now, group)
    redis.call('PEXPIRE', session_keys.emptied(partition), 86400000)
  end
  return was_member
end

-- header: what an entry begins with: ts, expiry, bytes of the log so far (in a mailbox: until, expiry, bytes); then the
-- position at which the message begins.
local function header(entry) return struct.unpack('>I8I8I8', entry) end

-- hints_for: the rows of the message to a node.
local function hints_for(node, partition)
  local rows = HINTS[node]
  if not rows then
    rows = { partition = partition, size = 0 }
    HINTS[node] = rows
  end
  return rows
end

-- kick: tell a node that the connection with this generation no longer has the session.
local function kick(node, sid, generation, reason)
  if node == '' then return end
  local rows = hints_for(node, partition_of(sid))
  rows[#rows + 1] = struct.pack('>c1Bc0I8Bc0', 'k', #sid, sid, generation, #reason, reason)
end

-- add: number one message and append it to the log; returns its seq.
local function add(s, tail, expiry)
  local ts, bytes, run = s.last_ts + 1, s.bytes + #tail + HEADER_BYTES, s.run
  if now_us > ts then ts = now_us end
  s.last_ts, s.top, s.bytes = ts, s.top + 1, bytes
  run[#run + 1] = struct.pack('>I8I8I8', ts, expiry, bytes) .. tail
  return s.top
end

-- repair: the list is shorter than it should be, because it was deleted or evicted. Entries keep their numbers, and a
-- new epoch shows clients that this is another log.
local function repair(s, length)
  local entry = redis.call('LINDEX', session_keys.outbox(s.base), 0)
  local _, _, bytes = header(entry)
  s.floor, s.floor_ts, s.bytes_floor = s.top - length, 0, bytes - #entry
  local meta = session_keys.meta(s.base)
  local epoch = tonumber(redis.call('HGET', meta, field.EPOCH), 16)
  redis.call('HSET', meta, field.EPOCH, string.format('%08x', (epoch + 1) % 4294967296))
end

-- store_new: write the entries that were added.
local function store_new(s)
  local run, list = s.run, session_keys.outbox(s.base)
  local length
  for first = s.stored + 1, #run, 1000 do
    length = redis.call('RPUSH', list, unpack(run, first, math.min(first + 999, #run)))
  end
  s.stored = #run
  if length and length ~= s.top - s.floor then repair(s, length) end
end

-- dropped_range: what the policy to drop the oldest has removed since the last ack: entries above the first number, up to the second.
local function dropped_range(base)
  local from, to = unpack(redis.call('HMGET', session_keys.meta(base), field.DROPPED_FROM, field.POLICY_FLOOR))
  return tonumber(from or 0), tonumber(from and to or 0)
end

-- cut: remove everything up to this seq from the log, which is at least one entry; `save` does it. If a ts above 0 is given and
-- the entry has another one, nothing changes and the answer is false.
local function cut(s, seq, ts)
  local count = (s.cut or 0) + seq - s.floor
  local entry = redis.call('LINDEX', session_keys.outbox(s.base), count - 1)
  if entry then
    local entry_ts, _, bytes = header(entry)
    if ts and ts > 0 and ts ~= entry_ts then return false end
    s.floor_ts, s.bytes_floor = entry_ts, bytes
  else -- the list was damaged: no cursor fits a ts of 0, so the client will be reset
    s.floor_ts, s.bytes_floor = 0, s.bytes
  end
  s.cut, s.floor = count, seq
  if redis.call('HEXISTS', session_keys.meta(s.base), field.DROPPED_FROM) == 1 then
    s.notes = redis.call('HGETALL', session_keys.waiting(s.base))
  end
  return true
end

-- forget_dropped: from here on the floor no longer tells what was acknowledged from what was dropped: delete the notes of
-- the latter (see include/mail.lua).
local function forget_dropped(s)
  local from, to = dropped_range(s.base)
  for i = 1, #s.notes, 2 do
    local seq = tonumber(string.match(s.notes[i + 1], '^%d+') or 0)
    if seq > from and seq <= to then redis.call('HDEL', session_keys.waiting(s.base), s.notes[i]) end
  end
  redis.call('HDEL', session_keys.meta(s.base), field.DROPPED_FROM)
end

-- save_floor: write the floor if it has moved.
local function save_floor(s)
  if not s.floor_ts then return end
  redis.call('HSET', session_keys.meta(s.base), field.FLOOR, s.floor, field.FLOOR_TS, s.floor_ts,
    field.BYTES_FLOOR, s.bytes_floor)
end

-- save: write what has changed of a session, and tell its node what was appended.
local function save(s)
  local run = s.run
  if s.cut then
    redis.call('LTRIM', session_keys.outbox(s.base), s.cut, -1)
    s.cut = nil
    if s.notes then forget_dropped(s) end
  end
  local count = #run
  if count == 0 then return save_floor(s) end
  store_new(s)
  redis.call('HSET', session_keys.meta(s.base), field.TOP, s.top, field.LAST_TS, s.last_ts, field.BYTES, s.bytes)
  save_floor(s)
  if s.node == '' then return end
  local rows = hints_for(s.node, s.partition)
  local n, size = #rows + 1, rows.size
  rows[n] = struct.pack('>c1Bc0I8I4', 'm', #s.sid, s.sid, s.top - count + 1, count)
  for i = 1, count do
    local entry = run[i]
    n = n + 1
    if #entry <= 4096 and size + #entry <= 1048576 then
      size = size + #entry
      rows[n] = struct.pack('>I4', #entry) .. entry
    else -- too large for a hint: the node reads the log
      rows[n] = '\255\255\255\255'
    end
  end
  rows.size = size
end

-- save_all: write all sessions that were changed.
local function save_all()
  for _, s in pairs(FOUND) do
    if s then save(s) end
  end
end

-- tell_nodes: one message per node with all its rows. It comes last and never fails a call: it is only a hint.
local function tell_nodes(channel)
  for node, rows in pairs(HINTS) do
    if channel == 's' then
      redis.pcall('SPUBLISH', session_keys.sharded_hints(rows.partition, node), table.concat(rows))
    else
      redis.pcall('PUBLISH', session_keys.hints(node), table.concat(rows))
    end
  end
end

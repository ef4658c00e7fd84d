-- Sessions and their logs. A script finds the sessions it needs (all reads, so that damage stops it before the first
-- write), changes them here in memory, and saves each once; one message per node tells what was appended.
local FOUND, TOLD, NOW, NOW_US = {}, {}, 0, 0
local ROOT = string.sub(KEYS[1], 1, -11) -- of all keys of the gateway: what stands before {pXXX}:all

-- partition_of: the beginning of all keys of the partition with this tag, or of the session whose id begins with it.
local function partition_of(tag) return ROOT .. '{' .. string.sub(tag, 1, 4) .. '}:' end

-- moment: the server's time in milliseconds and in microseconds; a time given by a test wins.
local function moment(given)
  if given then
    NOW_US = tonumber(given) * 1000
  else
    local time = redis.call('TIME')
    NOW_US = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  NOW = math.floor(NOW_US / 1000)
  return NOW, NOW_US
end

-- look_up: a session that has not ended, read once per call; false if there is none.
local function look_up(sid, now)
  local s = FOUND[sid]
  if s ~= nil then return s end
  local base = ROOT .. '{' .. string.sub(sid, 1, 4) .. '}:s:' .. sid .. ':'
  local m = redis.call('HMGET', base .. 'm', 's', 'x', 'lt', 'f', 'cb', 'cf', 'n', 'q', 'qb', 'po')
  if not m[1] or (m[2] ~= '0' and tonumber(m[2]) <= now) then
    s = false
  else
    s = {
      sid = sid, base = base, top = tonumber(m[1]), last = tonumber(m[3]), floor = tonumber(m[4]),
      bytes = tonumber(m[5]), bytes_floor = tonumber(m[6]), node = m[7], quota = tonumber(m[8]),
      quota_bytes = tonumber(m[9]), policy = m[10], run = {}, stored = 0,
    }
  end
  FOUND[sid] = s
  return s
end

-- check_list: a session of several in one call: a damaged list shall stop the call before its first write.
local function check_list(s)
  if s then redis.call('LLEN', s.base .. 'o') end
end

-- look_up_all: the sessions in ARGV, one every so many arguments. The list of a single one is written first anyway.
local function look_up_all(first, width, count, now)
  for i = 0, count - 1 do
    local s = look_up(ARGV[first + i * width], now)
    if count > 1 then check_list(s) end
  end
end

-- end_membership: a session is no member any more. If it was the last one in this partition, a sweep has to forget the
-- partition: where a group has members stands in another slot. Returns whether it was a member.
local function end_membership(partition, group, sid)
  local was_member = redis.call('ZREM', partition .. 'g:' .. group, sid) == 1
  if was_member and redis.call('EXISTS', partition .. 'g:' .. group) == 0 then
    redis.call('ZADD', partition .. 'ge', 'NX', NOW, group)
    redis.call('PEXPIRE', partition .. 'ge', 86400000)
  end
  return was_member
end

-- header: the three numbers an entry begins with: ts, expiry, bytes of the log so far (of mail: until, expiry, bytes).
local function header(entry) return struct.unpack('>I8I8I8', entry) end

-- let_know: remember one row for the node that has the session.
local function let_know(node, row)
  if node == '' then return end
  local rows = TOLD[node]
  if rows then rows[#rows + 1] = row else TOLD[node] = { row } end
end

-- kick: the connection with this generation no longer has the session.
local function kick(node, sid, generation, reason)
  let_know(node, struct.pack('>BB', 107, #sid) .. sid .. struct.pack('>I8B', generation, #reason) .. reason)
end

-- add: number one message and put it into the log; returns its seq.
local function add(s, tail, expiry, now_us)
  local ts, bytes, run = s.last + 1, s.bytes + #tail + 24, s.run
  if now_us > ts then ts = now_us end
  s.last, s.top, s.bytes = ts, s.top + 1, bytes
  run[#run + 1] = struct.pack('>I8I8I8', ts, expiry, bytes) .. tail
  return s.top
end

-- mend: the list has not as many entries as it should: somebody deleted or evicted it. Each entry keeps its number, what
-- is gone is gone, and a new epoch lets everybody know that it is another log now.
local function mend(s, length)
  local entry = redis.call('LINDEX', s.base .. 'o', 0)
  local _, _, bytes = header(entry)
  s.floor, s.floor_ts, s.bytes_floor = s.top - length, 0, bytes - #entry
  local epoch = tonumber(redis.call('HGET', s.base .. 'm', 'e'), 16)
  redis.call('HSET', s.base .. 'm', 'e', string.format('%08x', (epoch + 1) % 4294967296))
end

-- store_new: write the entries that were added.
local function store_new(s)
  local run, list = s.run, s.base .. 'o'
  local length
  for first = s.stored + 1, #run, 1000 do
    length = redis.call('RPUSH', list, unpack(run, first, math.min(first + 999, #run)))
  end
  s.stored = #run
  if length and length ~= s.top - s.floor then mend(s, length) end
end

-- cut: everything up to this seq leaves the log, which is at least one entry. With a ts above 0 only if that is the
-- entry's own; otherwise nothing changes and the answer is false.
local function cut(s, seq, ts)
  local entry = redis.call('LINDEX', s.base .. 'o', seq - s.floor - 1)
  if entry then
    local entry_ts, _, bytes = header(entry)
    if ts and ts > 0 and ts ~= entry_ts then return false end
    s.floor_ts, s.bytes_floor = entry_ts, bytes
  else -- the list was damaged: no cursor fits a ts of 0, so the client will be told
    s.floor_ts, s.bytes_floor = 0, s.bytes
  end
  redis.call('LTRIM', s.base .. 'o', seq - s.floor, -1)
  s.floor = seq
  return true
end

-- save: write what has changed of a session, and tell its node what was appended.
local function save(s)
  local run = s.run
  local count = #run
  if count == 0 then
    if s.floor_ts then redis.call('HSET', s.base .. 'm', 'f', s.floor, 'ft', s.floor_ts, 'cf', s.bytes_floor) end
    return
  end
  store_new(s)
  redis.call('HSET', s.base .. 'm', 's', s.top, 'lt', s.last, 'cb', s.bytes)
  if s.floor_ts then redis.call('HSET', s.base .. 'm', 'f', s.floor, 'ft', s.floor_ts, 'cf', s.bytes_floor) end
  local node = s.node
  if node == '' then return end
  local rows = TOLD[node]
  if not rows then
    rows = {}
    TOLD[node] = rows
  end
  local n, told = #rows + 1, rows.size or 0
  rows[n] = struct.pack('>BBc0I8I4', 109, #s.sid, s.sid, s.top - count + 1, count)
  for i = 1, count do
    local entry = run[i]
    n = n + 1
    if #entry <= 4096 and told + #entry <= 1048576 then
      told = told + #entry
      rows[n] = struct.pack('>I4', #entry) .. entry
    else
      rows[n] = '\255\255\255\255'
    end
  end
  rows.size = told
end

-- save_all: write all sessions that were changed.
local function save_all()
  for _, s in pairs(FOUND) do
    if s then save(s) end
  end
end

-- tell_nodes: one message per node with all its rows. It comes last and never fails a call: it is only a hint.
local function tell_nodes(channel)
  for node, rows in pairs(TOLD) do
    if channel == 's' then
      redis.pcall('SPUBLISH', string.sub(KEYS[1], 1, -4) .. 'w:' .. node, table.concat(rows))
    else
      redis.pcall('PUBLISH', ROOT .. 'w:' .. node, table.concat(rows))
    end
  end
end

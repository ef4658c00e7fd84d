-- NEEDS  pushing request_records

-- What a request's handler has sent to the client already: request -> numbers of its notifies, as ranges like `1-7,9-9`.
-- A handler numbers its notifies, so the number shows a repeated one.
local MOST_RANGES = 64

-- with_number: the ranges with this number added; nil if it is in them. Gaps arise where notifies found no room. If there
-- are too many ranges, the lowest two become one.
local function with_number(text, number)
  local ranges = { { first = number, last = number } }
  for first, last in string.gmatch(text, '(%d+)-(%d+)') do
    local range = { first = tonumber(first), last = tonumber(last) }
    if number >= range.first and number <= range.last then return nil end
    ranges[#ranges + 1] = range
  end
  table.sort(ranges, function(a, b) return a.first < b.first end)
  local joined = {}
  for i, range in ipairs(ranges) do
    local before = joined[#joined]
    if before and (range.first == before.last + 1 or #ranges - i + #joined >= MOST_RANGES) then
      before.last = range.last
    else
      joined[#joined + 1] = range
    end
  end
  for i, range in ipairs(joined) do joined[i] = string.format('%.0f-%.0f', range.first, range.last) end
  return table.concat(joined, ',')
end

-- kept_ms: how long the numbers of a request's notifies are kept: as long as an attempt may repeat them.
local function kept_ms(record)
  if kind_of(record) ~= 'accepted' then return tonumber(dedupe_ms) end
  return math.max(0, tonumber(string.match(record, '%d+')) - now) + dedupe_ms
end

-- push_once: append the notify with this number of a request, unless that was done before; status and seq.
local function push_once(s, rid, number, tail, expiry, policy)
  if not s then return 'gone', 0 end
  local notified = session_keys.told(s.base)
  local known, record = redis.call('HGET', notified, rid), redis.call('HGET', session_keys.requests(s.base), rid)
  -- Numbers are forgotten when the client has seen the answer: what comes later is of an attempt that runs once more.
  if not known and not record and is_acknowledged(s, rid) then return 'duplicate', 0 end
  local ranges = with_number(known or '', tonumber(number))
  -- The previous version kept a key for each notify.
  local before = redis.call('GET', session_keys.dedupe(s.base, s.sid .. '.' .. rid .. ':' .. number))
  if before or not ranges then return 'duplicate', tonumber(before or 0) end
  local status, seq = push(s, tail, expiry, '', policy)
  if status == 'queued' then
    redis.call('HSET', notified, rid, ranges)
    local kept = kept_ms(record)
    if redis.call('PTTL', notified) < kept then
      redis.call('PEXPIRE', notified, kept) -- the previous version does not delete it with its session
    end
  end
  return status, seq
end

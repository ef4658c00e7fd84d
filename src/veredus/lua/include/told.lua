-- What a request's handler has told the client already: `n`: request -> the numbers of its notifies, as ranges like `1-7,9-9`.
-- A handler numbers its notifies, so one that is repeated is known by its number. Needs pushing.
local MOST_RANGES = 64

-- with_number: the ranges with this number; nil if it is among them. Ranges arise where notifies were dropped for want of
-- room: beyond the most that are kept, the lowest two become one.
local function with_number(text, number)
  local ranges = { { number, number } }
  for first, last in string.gmatch(text, '(%d+)-(%d+)') do
    local range = { tonumber(first), tonumber(last) }
    if number >= range[1] and number <= range[2] then return nil end
    ranges[#ranges + 1] = range
  end
  table.sort(ranges, function(a, b) return a[1] < b[1] end)
  local joined = {}
  for i, range in ipairs(ranges) do
    local before = joined[#joined]
    if before and (range[1] == before[2] + 1 or #ranges - i + #joined >= MOST_RANGES) then
      before[2] = range[2]
    else
      joined[#joined + 1] = range
    end
  end
  for i, range in ipairs(joined) do joined[i] = string.format('%.0f-%.0f', range[1], range[2]) end
  return table.concat(joined, ',')
end

-- push_once: append the notify with this number of a request, unless that was done before; status and seq.
local function push_once(s, rid, number, tail, expiry, policy, kept_ms, now, now_us)
  if not s then return 'gone', 0 end
  local ranges = with_number(redis.call('HGET', s.base .. 'n', rid) or '', tonumber(number))
  -- The version before this one kept a key for each notify.
  local before = redis.call('GET', s.base .. 'i:' .. s.sid .. '.' .. rid .. ':' .. number)
  if before or not ranges then return 'duplicate', tonumber(before or 0) end
  local status, seq = push(s, tail, expiry, '', policy, kept_ms, now, now_us)
  if status == 'queued' then
    redis.call('HSET', s.base .. 'n', rid, ranges)
    redis.call('PEXPIRE', s.base .. 'n', kept_ms) -- the version before this one does not delete it with its session
  end
  return status, seq
end

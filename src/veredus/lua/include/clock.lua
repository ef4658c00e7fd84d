-- NEEDS  nothing

-- clock: the server's time, the only clock of all scripts; a time given by a test wins.
-- Returns milliseconds rounded down (to ask what is due), rounded up (to set what will be due, so that nothing is
-- ever early), nanoseconds as text (a double cannot hold them), and the microseconds that rounding down cut off.
local function clock()
  if given_now_ms and given_now_ms ~= '' then
    local ms = tonumber(given_now_ms)
    return ms, ms, string.format('%.0f000000', ms), 0
  end
  local time = redis.call('TIME')
  local seconds, micros = tonumber(time[1]), tonumber(time[2])
  return seconds * 1000 + math.floor(micros / 1000), seconds * 1000 + math.ceil(micros / 1000),
    string.format('%.0f%06d000', seconds, micros), micros % 1000
end

-- instant: whole milliseconds from "+250.5" (from now, rounded up once) or "1794780955123" (absolute). `beyond`: how many
-- microseconds have passed since `now`.
local function instant(given, now, beyond)
  if string.sub(given, 1, 1) ~= '+' then return tonumber(given) end
  return math.ceil(now + (beyond or 0) / 1000 + tonumber(string.sub(given, 2)))
end

-- whole: a number of seconds or milliseconds as text without exponent or fraction.
local function whole(number) return string.format('%.0f', number) end

-- NEEDS  clock

-- day_of: the UTC date of an instant, from days since 1970 (no library for it inside the server).
local function day_of(now)
  local days = math.floor(now / 86400000) + 719468
  local era = math.floor(days / 146097)
  local doe = days - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02d', year, month, day)
end

-- count_on: add to a counter of one day, which is kept for 90 days, and to the one of all days. Asynq starts the latter again from
-- 1 near 2^63; compared as doubles there as here.
local function count_on(now, day_counter, total, number, is_at_end)
  if redis.pcall('INCRBY', day_counter, number) == number then
    redis.call('EXPIREAT', day_counter, whole(math.floor(now / 1000) + 90 * 86400))
  end
  if is_at_end then redis.pcall('SET', total, 1) else redis.pcall('INCRBY', total, number) end
end

-- tally: count runs and failures. Counting comes last and never fails a settlement: a damaged counter must not bring a finished
-- task back.
local function tally(now, runs, failures)
  if runs == 0 and failures == 0 then return end
  local processed, failed, day = keys.processed(), keys.failed(), day_of(now)
  local is_at_end = (tonumber(redis.pcall('GET', processed) or 0) or 0) >= 9223372036854775807
  if runs > 0 then count_on(now, keys.processed_on(day), processed, runs, is_at_end) end
  if failures > 0 then count_on(now, keys.failed_on(day), failed, failures, is_at_end) end
end

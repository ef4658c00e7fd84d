-- NEEDS  closed

-- A producer's calls in flight have a slot each, and a slot has a record in Redis: `<number> <codes> <first task id>` of the last
-- call, without codes if every task was stored. Calls have growing numbers of 12 digits, which compare as text; one without a
-- number has no record.

-- sent_codes_of: what the record says to this call. nil: the call is new. The codes that an earlier try of it returned. {-5}:
-- the record has a later call, or another one with the same number.
local function sent_codes_of(record, number, id, count)
  if not record or record < number then return nil end
  local seen, told, first = string.match(record, '^(%d+) (%S*) (.*)$')
  if seen ~= number or first ~= id then return { -5 } end
  local codes, place = {}, 0
  for i = 1, count do codes[i] = 1 end
  for code in string.gmatch(told, '[^,]+') do
    place = place + 1
    codes[place] = tonumber(code)
  end
  return codes
end

-- sent_before: record this call. Returns nil if it is new, else what to return for it; then nothing else may be written.
local function sent_before(sent, number, lifetime, id, count)
  if number == '' then return nil end
  local record = redis.call('SET', sent, number .. '  ' .. id, 'EX', lifetime, 'GET')
  local codes = sent_codes_of(record, number, id, count)
  if codes then redis.call('SET', sent, record, 'EX', lifetime) end
  return codes
end

-- sent_now: complete the record if not all tasks of the call were stored. Returns the codes.
local function sent_now(sent, number, lifetime, id, codes)
  for i = 1, #codes do
    if number ~= '' and codes[i] ~= 1 then
      redis.call('SET', sent, number .. ' ' .. table.concat(codes, ',') .. ' ' .. id, 'EX', lifetime)
      break
    end
  end
  return codes
end

-- sent_nothing: the call has stored nothing: under the same number it is new again.
local function sent_nothing(sent, number, lifetime)
  if number ~= '' then redis.call('SET', sent, string.format('%012.0f  ', tonumber(number) - 1), 'EX', lifetime) end
end

-- answer_without_storing: what to return for a call that stores nothing: it was sent before, or the queue is closed. nil for
-- a new call, which is recorded.
local function answer_without_storing(queue_prefix, sent, number, lifetime, id, count)
  local answered = sent_before(sent, number, lifetime, id, count)
  if not answered and is_closed(queue_prefix) then
    sent_nothing(sent, number, lifetime)
    return { -4 }
  end
  return answered
end

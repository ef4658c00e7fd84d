-- NEEDS  nothing

-- attempt_fields: the fields that keep the record of an attempt, for HSET: the count of all, and one of ten that are used in
-- turn. None without a record. `count` is the value of the field `attempts` so far.
local function attempt_fields(count, record)
  if record == '' then return end
  local number = (tonumber(count or 0) or 0) + 1
  return 'attempts', number, 'attempt:' .. number % 10, record
end

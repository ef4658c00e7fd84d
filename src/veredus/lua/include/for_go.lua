-- NEEDS  types locks

-- rule_for_go: a function that says whether a task is left for the next poll of a Go server, and puts the id and the type of
-- one that is into `left`. `terms` is `<percent> <ms> <most>`, followed by \1type\0 of each type that Go is known to have a
-- handler for, \2type\0 of each that is not left at all, and \3type\0id\0 of each of which this task was left. Of any other type
-- one task is left at a time, to see whether Go can run it; if it is gone, no second one is left before the worker has learned
-- that. All workers come to the same answer, because it follows from the task's id and age; `place` is how many are before it.
-- Go may have no handler for a task: so one without retries is not left, nor one that has failed before.
local function rule_for_go(terms, now, left)
  local percent, longest, most, types = string.match(terms, '^(%d+) (%d+) (%d+)(.*)$')
  percent, longest, most = tonumber(percent), tonumber(longest), tonumber(most)
  local tried = {}
  local function is_another_tried(name, id)
    local _, ends = string.find(types, '\3' .. name .. '\0', 1, true)
    return ends and string.sub(types, ends + 1, ends + #id + 1) ~= id .. '\0'
  end
  return function(id, key, message, place)
    local name = type_in(message)
    if place >= most or not name or string.find(name, '[%z\1\2\3]') then return false end
    local is_known = string.find(types, '\1' .. name .. '\0', 1, true)
    if is_known then
      if tonumber(string.sub(redis.sha1hex(id), 1, 6), 16) % 100 >= percent then return false end
    elseif tried[name] or string.find(types, '\2' .. name .. '\0', 1, true) or is_another_tried(name, id) then
      return false
    end
    local since = redis.call('HGET', key, 'pending_since')
    local age = since and now - (tonumber(string.sub(since, 1, -7)) or 0)
    if not age or age < 0 or age >= longest then return false end
    if (field_in(message, 40) or 0) == 0 or (field_in(message, 48) or 0) > 0 then return false end -- retry, retried
    if not is_known then tried[name] = true end
    left[#left + 1] = id
    left[#left + 1] = name
    return true
  end
end

-- arrival: a text that grows with the moment at which a task joins its group, and with its place in the call; scores have
-- whole seconds, so without it the members of one second would stand in the order of their ids.
local function arrival(nanoseconds, place) return string.format('%s-%06d', nanoseconds, place) end

-- by_arrival: sort rows of {id, score, arrival}: by second, then by arrival; those that Go added have none and follow by id.
local function by_arrival(rows)
  table.sort(rows, function(a, b)
    if a[2] ~= b[2] then return tonumber(a[2]) < tonumber(b[2]) end
    if a[3] and b[3] and a[3] ~= b[3] then return a[3] < b[3] end
    if (a[3] == nil) ~= (b[3] == nil) then return b[3] == nil end
    return a[1] < b[1]
  end)
end

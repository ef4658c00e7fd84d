-- NEEDS  nothing

-- arrival: a text that grows with the moment at which a task joins its group, and with its place in the call; scores have
-- whole seconds, so without it the members of one second would stand in the order of their ids.
local function arrival(nanoseconds, place) return string.format('%s-%06d', nanoseconds, place) end

-- by_arrival: sort tasks with id, score and seq (their arrival): by second, then by arrival; those that Go added have none and
-- follow by id.
local function by_arrival(tasks)
  table.sort(tasks, function(a, b)
    if a.score ~= b.score then return tonumber(a.score) < tonumber(b.score) end
    if a.seq and b.seq and a.seq ~= b.seq then return a.seq < b.seq end
    if (a.seq == nil) ~= (b.seq == nil) then return b.seq == nil end
    return a.id < b.id
  end)
end

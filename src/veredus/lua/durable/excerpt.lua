-- excerpt: the beginning of the outcomes of some children, for people.
-- KEYS  kids
-- ARGV  most:number ROWS position:number
-- RETURNS  {beginning of the outcome, or empty if there is none yet, ...}
-- NEEDS  clock
local found = {}
for i, position in rows() do
  found[i] = string.sub(redis.call('HGET', kids, whole(position)) or '', 1, most)
end
return found

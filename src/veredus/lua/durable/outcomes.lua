-- outcomes: what some children of one hash have left for their parent.
-- KEYS  kids
-- ARGV  first:number last:number most_bytes:number
-- RETURNS  {outcome, or empty if there is none, ...} from position `first` on: up to `last`, or fewer if they are large
-- NEEDS  clock
-- Their number is bounded, but not what children return: many large results in one reply would hold up the server.
local found, bytes = {}, 0
for position = first, last do
  local outcome = redis.call('HGET', kids, whole(position)) or ''
  found[#found + 1] = outcome
  bytes = bytes + #outcome
  if bytes >= most_bytes then break end
end
return found

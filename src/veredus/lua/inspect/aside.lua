-- aside: rename a key of a wrong type, so that the queue works again and nothing is lost.
-- KEYS  key damaged
-- ARGV  kind [now_ms]
-- RETURNS  1 if it was renamed, 0 if it is of the right type or gone
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' or kind == ARGV[1] then return 0 end
redis.call('RENAME', KEYS[1], KEYS[2])
return 1

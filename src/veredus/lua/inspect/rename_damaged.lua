-- rename_damaged: rename a key of a wrong type, so that the queue works again and nothing is lost.
-- KEYS  key damaged
-- ARGV  kind
-- RETURNS  1 if it was renamed, 0 if it is of the right type or gone
-- NEEDS  nothing
local found = redis.call('TYPE', key).ok
if found == 'none' or found == kind then return 0 end
redis.call('RENAME', key, damaged)
return 1

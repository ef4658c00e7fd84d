-- hide: remove what a scheduler showed.
-- KEYS  entries [schedulers]
-- ARGV
-- RETURNS  number of keys deleted
local entries, schedulers = unpack(KEYS)
if schedulers then redis.call('ZREM', schedulers, entries) end
return redis.call('DEL', entries)

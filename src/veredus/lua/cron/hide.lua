-- hide: remove what a scheduler showed.
-- KEYS  entries [schedulers]
-- ARGV
-- RETURNS  number of keys deleted
-- NEEDS  nothing
if schedulers then redis.call('ZREM', schedulers, entries) end
return redis.call('DEL', entries)

-- ask: leave a request for a worker process, which reads it with its next heartbeat. A stop replaces a quiet, not the other way.
-- KEYS  server types details
-- ARGV  verb
-- RETURNS  1: asked; 0: no such process; -1: it is Go's; -2: it is of an earlier version
-- NEEDS  nothing
-- The request lives as long as the process: it is deleted or expires together with its record.
if redis.call('EXISTS', server) == 0 then return 0 end
if redis.call('EXISTS', types) == 0 then return -1 end
if redis.call('TYPE', details).ok ~= 'hash' then return -2 end
if redis.call('HGET', details, 'asked') ~= 'stop' then redis.call('HSET', details, 'asked', verb) end
return 1

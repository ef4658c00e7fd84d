-- resume: fire a schedule again, from its next tick.
-- KEYS  state
-- ARGV
-- RETURNS  1 resumed, 0 it was not paused, -1 no scheduler of ours fires it
-- NEEDS  nothing
if redis.call('EXISTS', state) == 0 then return -1 end
return redis.call('HDEL', state, 'paused')

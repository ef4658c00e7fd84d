-- pause: let the ticks of a schedule pass. The mark goes with the schedule's position.
-- KEYS  state
-- ARGV
-- RETURNS  1 paused, 0 it was paused already, -1 no scheduler of ours fires it
-- NEEDS  nothing
if redis.call('EXISTS', state) == 0 then return -1 end
return redis.call('HSETNX', state, 'paused', 1)

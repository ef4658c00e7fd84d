-- lead: become or stay the leader of some schedules, unless another scheduler's lease on them lasts.
-- KEYS  leader
-- ARGV  scheduler lease_ms:number
-- RETURNS  1 or 0, how many ms the leader's lease lasts, now_ms
-- NEEDS  clock
local now = clock()
local holder = redis.call('GET', leader)
if holder and holder ~= scheduler then
  local left = redis.call('PTTL', leader)
  if left >= 0 then return { 0, left, now } end
end
redis.call('SET', leader, scheduler, 'PX', whole(lease_ms))
return { 1, lease_ms, now }

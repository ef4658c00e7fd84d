-- listen: the payload of an event; until there is one, a task is noted as waiting for it.
-- KEYS  event waiters
-- ARGV  waiter ttl_s:number
-- RETURNS  payload, or false
-- NEEDS  checks grow
-- A look repeats it as long as the task waits, so the note need not last.
expect(waiters, 'set')
local payload = redis.call('GET', event)
if payload then return string.sub(payload, 17) end -- behind the call that emitted it
grow('SADD', waiters, waiter)
if redis.call('TTL', waiters) < ttl_s / 2 then redis.call('EXPIRE', waiters, ttl_s) end
return false

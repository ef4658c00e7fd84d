-- listen: the payload of an event; until there is one, a task is noted as waiting for it.
-- KEYS  event waiters
-- ARGV  waiter ttl_s:number
-- RETURNS  payload, or false
-- NEEDS  checks grow
-- A look repeats it as long as the task waits, so the note need not last. Who gets the payload here may have been noted before, if
-- the process that emitted the event ended before it had woken everybody.
expect(waiters, 'set')
local payload = redis.call('GET', event)
if payload then
  redis.call('SREM', waiters, waiter)
  return string.sub(payload, 17) -- behind the call that emitted it
end
grow('SADD', waiters, waiter)
if redis.call('TTL', waiters) < ttl_s / 2 then redis.call('EXPIRE', waiters, ttl_s) end
return false

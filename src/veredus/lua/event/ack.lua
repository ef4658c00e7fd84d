-- ack: those that wait for an event have it.
-- KEYS  event waiters
-- ARGV  most:number ROWS waiter
-- RETURNS  {some of those that still wait for it}
-- NEEDS  checks
expect(waiters, 'set')
for _, waiter in rows() do redis.call('SREM', waiters, waiter) end
return redis.call('SRANDMEMBER', waiters, most)

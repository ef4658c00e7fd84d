-- emit: keep an event; the first of a name counts until it expires.
-- KEYS  event waiters
-- ARGV  call payload ttl_ms:number most:number
-- RETURNS  {1 if this was the first of its name or else 0, {some of those that wait for it}, the payload that counts}
-- NEEDS  checks clock
-- `call` has 16 characters, and is stored with the payload: a call that is repeated because its reply was lost gets the same answer.
expect(waiters, 'set')
redis.call('SET', event, call .. payload, 'NX', 'PX', whole(ttl_ms))
local stored = redis.call('GET', event)
local is_first = string.sub(stored, 1, #call) == call and 1 or 0
return { is_first, redis.call('SRANDMEMBER', waiters, most), string.sub(stored, #call + 1) }

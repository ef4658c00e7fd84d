-- revoke: refuse the tokens of a user that were issued before an instant, at every attach and renewal from now on.
-- KEYS  revoked user_sessions
-- ARGV  before kept_ms:number
-- RETURNS  {before, {sid}*}: the instant in ms, and the user's sessions, of which those with such tokens are to be ended
-- NEEDS  clock grow
-- An empty `before` means now. An earlier instant than the stored one changes nothing.
local now = clock()
local before_ms = before == '' and now or tonumber(before)
local sids = redis.call('ZRANGE', user_sessions, 0, -1)
local latest = math.max(before_ms, tonumber(redis.call('GET', revoked) or '') or 0)
local life = math.max(latest - now + kept_ms, kept_ms, redis.call('PTTL', revoked))
may_grow(revoked)
redis.call('SET', revoked, whole(latest), 'PX', whole(life))
return { whole(before_ms), sids }

-- revoke: refuse the tokens of a user that were issued before an instant, at every attach and renewal from now on.
-- KEYS  partition
-- ARGV  channel user before kept_ms [now_ms]
-- RETURNS  {before, {sid}*}: the instant in ms, and the user's sessions, of which those with such tokens are to be ended
-- include: log grow
-- An empty `before` means now. An earlier instant than one that was given before changes nothing.
local user, given, kept = ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = moment(ARGV[5])
local partition = string.sub(KEYS[1], 1, -4)
local key, before = partition .. 'rv:' .. user, given == '' and now or tonumber(given)
local sids = redis.call('ZRANGE', partition .. 'u:' .. user, 0, -1)
local latest = math.max(before, tonumber(redis.call('GET', key) or '') or 0)
local life = math.max(latest - now + kept, kept, redis.call('PTTL', key))
may_grow(key)
redis.call('SET', key, string.format('%.0f', latest), 'PX', string.format('%.0f', life))
return { string.format('%.0f', before), sids }

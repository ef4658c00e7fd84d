-- grant: a client has shown a new token: the groups that it names are those of the session from now on.
-- KEYS  partition
-- ARGV  channel sid issued count {group}* [now_ms]
-- RETURNS  1, 0 if there is no such session, -1 if the token is revoked
-- include: checks log grant tokens
local sid, count = ARGV[2], tonumber(ARGV[4])
local now = moment(ARGV[5 + count])
local s = look_up(sid, now)
if not s then return 0 end
local issued = issued_at(ARGV[3], now)
if is_revoked(partition_of(sid), redis.call('HGET', s.base .. 'm', 'u'), issued) then return -1 end
expect(s.base .. 'g', 'set')
local groups = {}
for i = 5, 4 + count do groups[#groups + 1] = ARGV[i] end
for _, group in ipairs(groups) do expect(partition_of(sid) .. 'g:' .. group, 'zset') end
redis.call('HSET', s.base .. 'm', 'ti', issued)
grant(s.base, sid, groups)
return 1

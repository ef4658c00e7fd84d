-- grant: a client has a new token: the groups that it names are those of the session from now on.
-- KEYS  sessions
-- ARGV  sid issued ROWS(groups) group
-- RETURNS  1, 0 if there is no such session, -1 if the token is revoked
-- NEEDS  grant log tokens
local s = look_up(sid)
if not s then return 0 end
local meta, issued_ms = session_keys.meta(s.base), issued_at(issued, now)
if is_revoked(s.partition, redis.call('HGET', meta, field.USER), issued_ms) then return -1 end
check_grant(s.partition, s.base)
redis.call('HSET', meta, field.TOKEN_ISSUED, issued_ms)
grant(s.base, sid)
return 1

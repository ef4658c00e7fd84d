-- grant: a client has shown a new token: the groups that it names are those of the session from now on.
-- KEYS  partition
-- ARGV  channel sid count {group}* [now_ms]
-- RETURNS  1, or 0 if there is no such session
-- include: checks log grant
local sid, count = ARGV[2], tonumber(ARGV[3])
local s = look_up(sid, moment(ARGV[4 + count]))
if not s then return 0 end
expect(s.base .. 'g', 'set')
local groups = {}
for i = 4, 3 + count do groups[#groups + 1] = ARGV[i] end
for _, group in ipairs(groups) do expect(partition_of(sid) .. 'g:' .. group, 'zset') end
grant(s.base, sid, groups)
return 1

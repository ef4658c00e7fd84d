-- append: number messages and put each into the log of its session.
-- KEYS  partition
-- ARGV  channel dedupe_ms count {sid expiry key policy tail}* [now_ms]
-- RETURNS  per row {status, seq}: queued, duplicate (seq of the first), full or gone
-- include: clock chunks log mail erase pushing
-- On one server the rows may be of any partition; the key only says where to go on a cluster.
local channel, dedupe_ms, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now, now_us = moment(ARGV[4 + count * 5])
look_up_all(4, 5, count, now)

local replies = {}
for i = 1, count do
  local sid, expiry, key, policy, tail = unpack(ARGV, i * 5 - 1, i * 5 + 3)
  replies[i] = { push(look_up(sid, now), tail, expiry, key, policy, dedupe_ms, now, now_us) }
end
save_all()
tell_nodes(channel)
return replies

-- append: number messages and put each into the log of its session.
-- KEYS  partition
-- ARGV  channel dedupe_ms count {sid expiry key rid number policy tail}* [now_ms]
-- RETURNS  per row {status, seq}: queued, duplicate (seq of the first, if it is known), full or gone
-- include: clock chunks log mail erase pushing told
-- With `rid` it is a notify of that request's handler, whose `number` is its key.
-- On one server the rows may be of any partition; the key only says where to go on a cluster.
local channel, dedupe_ms, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now, now_us = moment(ARGV[4 + count * 7])
look_up_all(4, 7, count, now)
for i = 1, count do
  local s, rid = look_up(ARGV[i * 7 - 3], now), ARGV[i * 7]
  if s and rid ~= '' then redis.call('HLEN', s.base .. 'n') end
end

local replies = {}
for i = 1, count do
  local sid, expiry, key, rid, number, policy, tail = unpack(ARGV, i * 7 - 3, i * 7 + 3)
  local s = look_up(sid, now)
  if rid ~= '' then
    replies[i] = { push_once(s, rid, number, tail, expiry, policy, dedupe_ms, now, now_us) }
  else
    replies[i] = { push(s, tail, expiry, key, policy, dedupe_ms, now, now_us) }
  end
end
save_all()
tell_nodes(channel)
return replies

-- spread: put one message into the logs of the next sessions of an index: of a group, or of the whole partition.
-- KEYS  partition
-- ARGV  channel dedupe_ms index after limit expiry key policy tail [now_ms]
-- RETURNS  {last, {status}*}: go on after `last`; it is empty at the end
-- include: clock chunks log mail erase pushing
-- The index has score 0 throughout, so it is walked in the order of the names, whatever joins and leaves meanwhile.
local channel, dedupe_ms, index, after, limit, expiry, key, policy, tail = unpack(ARGV, 1, 9)
local now, now_us = moment(ARGV[10])
local from = after == '' and '-' or '(' .. after
local sids = redis.call('ZRANGEBYLEX', index, from, '+', 'LIMIT', 0, limit)
for _, sid in ipairs(sids) do check_list(look_up(sid, now)) end

local statuses = {}
for i, sid in ipairs(sids) do
  statuses[i] = push(look_up(sid, now), tail, expiry, key, policy, dedupe_ms, now, now_us)
end
save_all()
tell_nodes(channel)
return { #sids == tonumber(limit) and sids[#sids] or '', statuses }

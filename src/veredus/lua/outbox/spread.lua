-- spread: put one message into the logs of the next sessions of an index: of a group, or of the whole partition.
-- KEYS  index
-- ARGV  channel dedupe_ms after limit:number expiry dedupe_key policy tail
-- RETURNS  {last, {status}*}: go on after `last`; it is empty at the end
-- NEEDS  log pushing
-- All scores of the index are 0, so it is walked in the order of the ids, whatever joins and leaves in between.
local from = after == '' and '-' or '(' .. after
local sids = redis.call('ZRANGEBYLEX', index, from, '+', 'LIMIT', 0, limit)
for _, sid in ipairs(sids) do check_list(look_up(sid)) end

local statuses = {}
for i, sid in ipairs(sids) do statuses[i] = push(look_up(sid), tail, expiry, dedupe_key, policy) end
save_all()
tell_nodes(channel)
return { #sids == limit and sids[#sids] or '', statuses }

-- respond: the one terminal response to a request, with all that is bound to it, appended as one consecutive run.
-- KEYS  partition
-- ARGV  channel extra failed sid rid response dropped count_before count_after {tail}* [now_ms]
-- RETURNS  {status, seq, first, last, dropped}: sent, duplicate (seq of the first one) or gone
-- include: clock log binding
-- A response always finds room; what is bound to it may go `extra` entries (and as many KiB) beyond the quota, and is
-- dropped beyond that, the oldest first. How many were dropped, with those that the caller has dropped before, stands in the
-- response's metadata.
local channel, extra, failed, sid, rid, response = unpack(ARGV, 1, 6)
local count_before, count_after = tonumber(ARGV[8]), tonumber(ARGV[9])
local now, now_us = moment(ARGV[10 + count_before + count_after])
local s = look_up(sid, now)
if not s then return { 'gone', 0, 0, 0, 0 } end
local state = redis.call('HGET', s.base .. 'r', rid)
if is_answered(s, rid, state) then return { 'duplicate', state and tonumber(string.sub(state, 3)) or 0, 0, 0, 0 } end
for _, side in ipairs({ 'B', 'C' }) do redis.call('LLEN', s.base .. side .. ':' .. rid) end
for _, index in ipairs({ 'dl', 'bd' }) do redis.call('ZCARD', partition_of(sid) .. index) end

local befores, afters, dropped = release_held(s, rid, function(_, on_fail)
  return failed == '0' or on_fail == 's'
end)
dropped = dropped + tonumber(ARGV[7])
for i = 10, 9 + count_before do befores[#befores + 1] = { ARGV[i], 0 } end
for i = 10 + count_before, 9 + count_before + count_after do afters[#afters + 1] = { ARGV[i], 0 } end

local room = s.quota + tonumber(extra) - (s.top - s.floor) - 1
local room_bytes = s.quota_bytes + tonumber(extra) * 1024 - (s.bytes - s.bytes_floor) - #response
local total, bytes = #befores + #afters, 0
for _, items in ipairs({ befores, afters }) do
  for _, item in ipairs(items) do bytes = bytes + #item[1] + 24 end
end
local skip = { [befores] = 0, [afters] = 0 }
for _, items in ipairs({ befores, afters }) do
  while (total > room or bytes > room_bytes) and skip[items] < #items do
    skip[items] = skip[items] + 1
    total, bytes, dropped = total - 1, bytes - #items[skip[items]][1] - 24, dropped + 1
  end
end

local first = s.top + 1
for i = skip[befores] + 1, #befores do add(s, befores[i][1], befores[i][2], now_us) end
if dropped > 0 then -- one more entry of the map `metadata`, field 8 of the message: dropped -> the number
  local number = tostring(dropped)
  response = response .. struct.pack('>BB', 66, 11 + #number) .. '\10\7dropped\18' .. string.char(#number) .. number
end
local seq = add(s, response, 0, now_us)
for i = skip[afters] + 1, #afters do add(s, afters[i][1], afters[i][2], now_us) end
save(s)

local member, kind = sid .. '.' .. rid, state and string.sub(state, 1, 1)
redis.call('HSET', s.base .. 'r', rid, 'D:' .. whole(seq))
if kind == 'A' then
  redis.call('ZREM', partition_of(sid) .. 'dl', member)
  redis.call('HINCRBY', s.base .. 'm', 'op', -1)
elseif kind == 'B' then
  redis.call('ZREM', partition_of(sid) .. 'bd', member)
end
tell_nodes(channel)
return { 'sent', seq, first, s.top, dropped }

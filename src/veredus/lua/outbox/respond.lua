-- respond: the one terminal response to a request, with all that is bound to it, appended as one consecutive run.
-- KEYS  sessions
-- ARGV  channel extra:number failed:flag sid rid response dropped_before:number ROWS(befores) tail ROWS(afters) tail
-- RETURNS  {status, seq, first, last, dropped}: sent, duplicate (seq of the first one) or gone
-- NEEDS  binding clock log request_records
-- A response always finds room. What is bound to it may exceed the quota by `extra` entries (and as many KiB); beyond that
-- the oldest are dropped. Their number, with those that the caller has dropped before, is in the response's metadata.
local s = look_up(sid)
if not s then return { 'gone', 0, 0, 0, 0 } end
local requests, deadlines, early_binds =
  session_keys.requests(s.base), session_keys.deadlines(s.partition), session_keys.early_binds(s.partition)
local record = redis.call('HGET', requests, rid)
if is_answered(s, rid, record) then
  return { 'duplicate', record and tonumber(string.match(record, '%d+')) or 0, 0, 0, 0 }
end
held_count(s, rid)
redis.call('ZCARD', deadlines)
redis.call('ZCARD', early_binds)

local before_items, after_items, dropped = release_held(s, rid, function(_, on_fail)
  return not failed or on_fail == 's'
end)
dropped = dropped + dropped_before
for i, tail in befores() do before_items[#before_items + 1] = { tail = tail, expiry = 0 } end
for i, tail in afters() do after_items[#after_items + 1] = { tail = tail, expiry = 0 } end

local room = s.quota + extra - (s.top - s.floor) - 1
local room_bytes = s.quota_bytes + extra * 1024 - (s.bytes - s.bytes_floor) - #response
local total, bytes = #before_items + #after_items, 0
for _, items in ipairs({ before_items, after_items }) do
  for _, item in ipairs(items) do bytes = bytes + #item.tail + HEADER_BYTES end
end
local skip = { [before_items] = 0, [after_items] = 0 }
for _, items in ipairs({ before_items, after_items }) do
  while (total > room or bytes > room_bytes) and skip[items] < #items do
    skip[items] = skip[items] + 1
    total, bytes, dropped = total - 1, bytes - #items[skip[items]].tail - HEADER_BYTES, dropped + 1
  end
end

-- add_items: append what was not dropped.
local function add_items(items)
  for i = skip[items] + 1, #items do add(s, items[i].tail, items[i].expiry) end
end

local first = s.top + 1
add_items(before_items)
if dropped > 0 then -- one more entry of the map `metadata`, field 8 of the message: dropped -> the number
  local number = tostring(dropped)
  response = response .. struct.pack('>BB', 66, 11 + #number) .. '\10\7dropped\18' .. string.char(#number) .. number
end
local seq = add(s, response, 0)
add_items(after_items)
save(s)

local name, kind = request_name(sid, rid), kind_of(record)
redis.call('HSET', requests, rid, 'D:' .. whole(seq))
if kind == 'accepted' then
  redis.call('ZREM', deadlines, name)
  redis.call('HINCRBY', session_keys.meta(s.base), field.OPEN_REQUESTS, -1)
elseif kind == 'early' then
  redis.call('ZREM', early_binds, name)
end
tell_nodes(channel)
return { 'sent', seq, first, s.top, dropped }

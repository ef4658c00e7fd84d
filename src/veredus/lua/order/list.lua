-- list: some lanes with their sizes and what their first task is doing.
-- KEYS  lanes
-- ARGV  queue_prefix count {order_key}* [now_ms]
-- RETURNS  {size, id of the first, its state, 1 if it holds up the others, ...}, four values per lane
local queue_prefix, count = ARGV[1], tonumber(ARGV[2])
local rows = {}
for i = 3, 2 + count do
  local lane = queue_prefix .. 'lane:' .. ARGV[i]
  local size = redis.pcall('ZCARD', lane)
  local id, state, holds_up = '', '', 0
  if type(size) == 'number' and size > 0 then
    id = redis.call('ZRANGE', lane, 0, 0)[1]
    local fields = redis.pcall('HMGET', queue_prefix .. 't:' .. id, 'state', 'order_hold')
    state = not fields.err and fields[1] or ''
    holds_up = state == 'archived' and fields[2] and 1 or 0
  end
  for _, value in ipairs({ type(size) == 'number' and size or -1, id, state, holds_up }) do rows[#rows + 1] = value end
end
return rows

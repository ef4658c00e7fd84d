-- list: some lanes with their sizes and what their first task is doing.
-- KEYS  lanes
-- ARGV  queue_prefix ROWS order_key
-- RETURNS  {size, id of the first, its state, 1 if it holds up the others, ...}, four values per lane
-- NEEDS  fields sets
local reply = {}
for i, order_key in rows() do
  local lane = keys.lane(order_key)
  local size = redis.pcall('ZCARD', lane)
  local id, task = nil, {}
  if type(size) == 'number' and size > 0 then
    id = first_of(lane)
    task = read_task(keys.task(id), 'state', 'order_hold') or {}
  end
  local holds_up = task.state == 'archived' and task.order_hold and 1 or 0
  for _, value in ipairs({ type(size) == 'number' and size or -1, id or '', task.state or '', holds_up }) do
    reply[#reply + 1] = value
  end
end
return reply

-- list: one page of a container, with what is known about each task.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix state group newest_first:flag start:number size:number max_bytes:number ROWS anchor
-- RETURNS  {now_ms, size of the container, start, {id, score or place from the tail, message, result, due ms or lease
--   end, ...}}
-- NEEDS  clock fields places
-- Lists are read from the tail (the next to run first) or from the head; sorted sets by ascending score. A page ends
-- early when its messages have more than max_bytes; its length tells where the next one starts. In a sorted set the
-- page starts behind the first of the anchors that is still there: ranks shift while others take tasks.
local now = clock()

local listed, total = {}, 0
if state == 'pending' or state == 'active' then
  local list = state == 'pending' and pending or active
  total = redis.call('LLEN', list)
  if newest_first then
    for i, id in ipairs(redis.call('LRANGE', list, start, start + size - 1)) do
      listed[i] = { id = id, place = total - start - i }
    end
  else
    local page = redis.call('LRANGE', list, -start - size, -start - 1)
    for i = #page, 1, -1 do listed[#listed + 1] = { id = page[i], place = start + #page - i } end
  end
else
  local set = state == 'aggregating' and keys.group(group) or SETS[state]
  total = redis.call('ZCARD', set)
  for _, anchor in rows() do
    local rank = redis.call('ZRANK', set, anchor)
    if rank then
      start = rank + 1
      break
    end
  end
  local page = redis.call('ZRANGE', set, start, start + size - 1, 'WITHSCORES')
  for i = 1, #page, 2 do listed[#listed + 1] = { id = page[i], place = page[i + 1] } end
end

local found, bytes = {}, 0
for _, item in ipairs(listed) do
  if bytes > max_bytes then break end
  local id = item.id
  local task = read_task(keys.task(id), 'msg', 'result') or {}
  local extra = false
  if state == 'active' then extra = score_in(lease, id) or false end
  if state == 'scheduled' or state == 'retry' then extra = score_in(due, id) or false end
  for _, value in ipairs({ id, item.place, task.msg or false, task.result or false, extra }) do found[#found + 1] = value end
  bytes = bytes + #(task.msg or '') + #(task.result or '')
end
return { now, total, start, found }

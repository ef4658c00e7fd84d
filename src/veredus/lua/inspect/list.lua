-- list: one page of a container, with what is known of each task.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix state group newest_first start size max_bytes count {anchor}* [now_ms]
-- RETURNS  {now_ms, size of the container, start, {id, score or place from the tail, message, result, due ms or lease
--   end, ...}}
-- include: clock checks places
-- Lists are read from the tail (the next to run first) or from the head; sorted sets by ascending score. A page ends
-- early when its messages have more than max_bytes; its length tells where the next one starts. In a sorted set the
-- page starts behind the first of the anchors that is still there: ranks shift while others take tasks.
local state, group, newest_first = ARGV[2], ARGV[3], ARGV[4] == '1'
local start, size, max_bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local anchors = tonumber(ARGV[8])
local now = clock(ARGV[9 + anchors])

local listed, total = {}, 0
if state == 'pending' or state == 'active' then
  local list = state == 'pending' and pending or active
  total = redis.call('LLEN', list)
  if newest_first then
    for i, id in ipairs(redis.call('LRANGE', list, start, start + size - 1)) do
      listed[i] = { id, total - start - i }
    end
  else
    local page = redis.call('LRANGE', list, -start - size, -start - 1)
    for i = #page, 1, -1 do listed[#listed + 1] = { page[i], start + #page - i } end
  end
else
  local set = state == 'aggregating' and group_prefix .. group or SETS[state]
  total = redis.call('ZCARD', set)
  for i = 9, 8 + anchors do
    local rank = redis.call('ZRANK', set, ARGV[i])
    if rank then
      start = rank + 1
      break
    end
  end
  local page = redis.call('ZRANGE', set, start, start + size - 1, 'WITHSCORES')
  for i = 1, #page, 2 do listed[#listed + 1] = { page[i], page[i + 1] } end
end

local rows, bytes = {}, 0
for _, item in ipairs(listed) do
  if bytes > max_bytes then break end
  local id = item[1]
  local fields = redis.pcall('HMGET', task_prefix .. id, 'msg', 'result')
  if fields.err then fields = { false, false } end
  local extra = false
  if state == 'active' then extra = score_in(lease, id) or false end
  if state == 'scheduled' or state == 'retry' then extra = score_in(due, id) or false end
  for _, value in ipairs({ id, item[2], fields[1], fields[2], extra }) do rows[#rows + 1] = value end
  bytes = bytes + #(fields[1] or '') + #(fields[2] or '')
end
return { now, total, start, rows }

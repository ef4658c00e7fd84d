-- done: delete tasks that succeeded and leave nothing behind.
-- KEYS  active lease processed
-- ARGV  task_prefix count width owner {task_id [owner unique_key]}* [now_ms]
-- RETURNS  positions (from 1) of those that this owner no longer holds; nothing was changed for them
-- include: clock checks chunks active hold counters
-- `width` is 1 when all tasks of the call are of one owner and none has a unique lock, else 3.
local active, lease, processed = unpack(KEYS)
local task_prefix, count, width, owner = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local now, _, nanoseconds = clock(ARGV[5 + count * width])
expect(active, 'list')

-- Most queues have neither lanes nor limits: then there is less to read of each task.
local queue_prefix = string.sub(task_prefix, 1, -3)
local is_lean = redis.call('EXISTS', queue_prefix .. 'lanes', queue_prefix .. 'limits', queue_prefix .. 'limited') == 0
local ends = lease_ends(lease, 5, width, count)
local count_held, lost, ids, keys, waited, bound = 0, {}, {}, {}, {}, {}
local args, lease_end, expected = ARGV, nil, nil
for i = 1, count do
  local at = 5 + (i - 1) * width
  local id = args[at]
  local key = task_prefix .. id
  if width > 1 then owner, lease_end = args[at + 1], nil end
  if lease_end ~= ends[i] then -- most were taken together and end together
    lease_end = ends[i]
    expected = lease_end and held_by(owner, lease_end)
  end
  local held = lease_end and owns(key, expected, nil, is_lean)
  if held then
    if width > 1 then release(args[at + 2], id) end
    if held[2] then
      local verb = redis.call('HGET', key, 'cancel') == 'delete' and 'cancelled' or 'done'
      waited[#waited + 1] = { held[2], verb, key }
    end
    if held[4] or held[5] then bound[#bound + 1] = { id, held[4], held[5] } end
    count_held = count_held + 1
    ids[count_held], keys[count_held] = id, key
  else
    lost[#lost + 1] = i
  end
end
if in_chunks('ZREM', lease, ids) < count_held then -- an id came twice: the second is no longer held
  local met, refused = {}, {}
  for _, position in ipairs(lost) do refused[position] = true end
  count_held, ids, keys = 0, {}, {}
  for i = 1, count do
    local id = ARGV[5 + (i - 1) * width]
    if met[id] and not refused[i] then
      lost[#lost + 1] = i
    elseif not refused[i] then
      met[id], count_held = true, count_held + 1
      ids[count_held], keys[count_held] = id, task_prefix .. id
    end
  end
end
leave_active(active, ids)
delete_all(keys)
if #bound > 0 then
  -- include: lanes limits
  for _, row in ipairs(bound) do
    if row[2] then leave_lane(queue_prefix, row[2], row[1], nanoseconds) end
    if row[3] then free_slots(queue_prefix, row[3], row[1], now, nanoseconds) end
  end
end
if #waited > 0 then
  -- include: tell
  for _, row in ipairs(waited) do tell(row[1], row[2], row[3]) end
end
tally(now, processed, count_held, nil, 0)
return lost

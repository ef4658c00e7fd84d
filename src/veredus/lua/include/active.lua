-- NEEDS  nothing

-- leave_active: take a task out of the active list, end its lease and delete the fields that end with the attempt, those named
-- as well.
local function leave_active(active, lease, key, id, ...)
  redis.call('LREM', active, -1, id) -- from the tail, where the oldest are
  redis.call('ZREM', lease, id)
  redis.call('HDEL', key, 'held', 'slots', 'lost_by', ...)
end

-- are_these: whether a list has just these ids, in any order.
local function are_these(list, ids)
  if #list ~= #ids then return false end
  local wanted = {}
  for _, id in ipairs(ids) do wanted[id] = true end
  for _, id in ipairs(list) do
    if not wanted[id] then return false end
    wanted[id] = nil -- in a damaged list an id may stand twice
  end
  return true
end

-- leave_block: take out ids that stand side by side, a little way in front of the tail: two workers that take turns have such
-- blocks in the list. Those behind them are put back after one cut. Otherwise false, and nothing has changed.
local function leave_block(active, ids)
  local count = #ids
  local at = count >= 8 and redis.call('LPOS', active, ids[1], 'RANK', -1, 'MAXLEN', 4 * count)
  if not at or at < count - 1 then return false end
  if not are_these(redis.call('LRANGE', active, at - count + 1, at), ids) then return false end
  local behind = redis.call('LRANGE', active, at + 1, -1)
  redis.call('LTRIM', active, 0, -#behind - count - 1)
  redis.call('RPUSH', active, unpack(behind))
  return true
end

-- leave_active_list: take many ids out of the active list. Those that end in the order they began are together at its tail: one
-- cut removes them all, or those of another worker are between them and the tail. Otherwise each is searched from the tail on.
local function leave_active_list(active, ids)
  local count = #ids
  if count == 0 then return end
  local tail = redis.call('LRANGE', active, -count, -1)
  local is_tail = #tail == count
  for i = 1, count do
    if tail[count + 1 - i] ~= ids[i] then
      is_tail = are_these(tail, ids)
      break
    end
  end
  if is_tail then
    redis.call('LTRIM', active, 0, -count - 1)
  elseif not leave_block(active, ids) then
    for _, id in ipairs(ids) do redis.call('LREM', active, -1, id) end
  end
end

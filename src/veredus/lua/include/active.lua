-- leave_active: take tasks out of the active list. Tasks that end in the order they began stand together at its tail: one
-- cut removes them all. Otherwise each is searched from the tail on, where the oldest are.
local function leave_active(active, ids)
  local count = #ids
  if count == 0 then return end
  local tail = redis.call('LRANGE', active, -count, -1)
  local together = #tail == count
  for i = 1, count do
    if tail[count + 1 - i] ~= ids[i] then
      local wanted = {}
      for _, id in ipairs(ids) do wanted[id] = true end
      for _, id in ipairs(tail) do
        together = together and wanted[id]
        wanted[id] = nil
      end
      together = together and next(wanted) == nil
      break
    end
  end
  if together then
    redis.call('LTRIM', active, 0, -count - 1)
  else
    for _, id in ipairs(ids) do redis.call('LREM', active, -1, id) end
  end
end

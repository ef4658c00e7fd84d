-- leave_active: take tasks out of the active list. Tasks that end in the order they began stand together at its tail: one
-- cut removes them all. Otherwise each is searched from the tail on, where the oldest are.
local function leave_active(active, ids)
  if #ids == 0 then return end
  local wanted, together = {}, true
  for _, id in ipairs(ids) do wanted[id] = true end
  for _, id in ipairs(redis.call('LRANGE', active, -#ids, -1)) do
    together = together and wanted[id]
    wanted[id] = nil
  end
  if together and next(wanted) == nil then
    redis.call('LTRIM', active, 0, -#ids - 1)
  else
    for _, id in ipairs(ids) do redis.call('LREM', active, -1, id) end
  end
end

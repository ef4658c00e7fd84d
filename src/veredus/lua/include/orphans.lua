-- NEEDS  grow

-- note_orphans: a durable task is cancelled with its children: this record of its fan-outs outlives it, until all children are
-- cancelled. Written again whenever the task begins another fan-out before it ends. Returns whether it has any.
local function note_orphans(queue_prefix, id, action)
  local key, names = keys.task(id), {}
  local mark = redis.call('HGET', key, 'run')
  if not mark then return false end
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 2) == 'g:' then names[#names + 1] = field end
  end
  if #names == 0 then return false end
  local values, fan_outs = redis.call('HMGET', key, unpack(names)), {}
  for i, name in ipairs(names) do fan_outs[i] = { string.sub(name, 3), values[i] } end
  grow('HSET', keys.orphans(), id .. ' ' .. mark, cjson.encode({ action, fan_outs }))
  redis.call('EXPIRE', keys.orphans(), 2592000)
  return true
end

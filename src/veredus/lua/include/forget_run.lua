-- NEEDS  chunks

-- is_bound: whether a durable task waits for something or has children: then its queue and its payload are part of what it has done.
local function is_bound(key)
  if redis.call('HEXISTS', key, 'waiting') == 1 then return true end
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 2) == 'g:' then return true end
  end
  return false
end

-- forget_run: a durable task begins from its start: nothing is left of what it has done. Children of before go on by themselves: the
-- next run has another mark. Returns whether it waited.
local function forget_run(queue_prefix, id)
  local key, dead = keys.task(id), {}
  local mark, waiting = unpack(redis.call('HMGET', key, 'run', 'waiting'), 1, 2)
  if not mark then return false end
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 2, 2) == ':' then dead[#dead + 1] = field end
    if string.sub(field, 1, 2) == 'g:' then
      local count = tonumber(string.match(redis.call('HGET', key, field), '^%d+') or 0)
      for chunk = 0, math.ceil(count / 1000) - 1 do
        redis.call('UNLINK', keys.kids(id, mark, string.sub(field, 3), chunk))
      end
    end
  end
  in_chunks('HDEL', key, dead)
  redis.call('HDEL', key, 'run', 'waiting', 'woke', 'resumed', 'front')
  redis.call('ZREM', keys.waits(), id)
  return waiting and true
end

-- admission: who may begin now in a queue that has limits. Made once per batch: it reads the limits, and of each scope
-- that comes up how much room there is, and then counts along. Nothing is written before `settle`. Needs lanes, limits and
-- types.
local function admission(queue_prefix, now, now_up, nanoseconds)
  local limits, prefixes, by_type, by_key = {}, {}, false, false
  local declared = redis.call('HGETALL', queue_prefix .. 'limits')
  for i = 1, #declared, 2 do
    local spec, limit = declared[i], limit_from(declared[i + 1])
    limits[spec] = limit
    by_type = by_type or string.sub(spec, 1, 4) == 'task'
    by_key = by_key or string.find(spec, '^%a+%-key') ~= nil
    if limit and string.sub(spec, 1, 4) == 'task' and string.sub(spec, -1) == '*' then prefixes[#prefixes + 1] = spec end
  end
  table.sort(prefixes, function(a, b) return #a > #b end)
  local scopes, admitted, blocked, turned_away = {}, {}, {}, {}

  local function scope_at(name, limit)
    local scope = scopes[name]
    if not scope then
      scope = { name = name, limit = limit }
      scope.free, scope.at, scope.kept = room(queue_prefix, name, limit, now)
      scope.crowd = redis.call('EXISTS', queue_prefix .. 'waiting:' .. name) == 1
      scopes[name] = scope
    end
    return scope
  end

  local function spec_for(kind, task_type)
    local spec = kind .. task_type
    if limits[spec] then return spec end
    for _, prefix in ipairs(prefixes) do
      if string.sub(spec, 1, #prefix - 1) == string.sub(prefix, 1, -2) then return prefix end
    end
  end

  local function scopes_of(message, key)
    local found = {}
    if by_type then
      local task_type = type_in(message) or ''
      local spec = spec_for('task:', task_type)
      if spec then found[#found + 1] = scope_at(spec, limits[spec]) end
      spec = key and spec_for('task-key:', task_type)
      if spec then
        local pattern = string.sub(spec, 10)
        found[#found + 1] = scope_at('task-key:' .. #pattern .. ':' .. pattern .. ':' .. key, limits[spec])
      end
    end
    if key and limits['queue-key'] then found[#found + 1] = scope_at('queue-key:' .. key, limits['queue-key']) end
    return found
  end

  local gate = {}

  -- The whole queue: how many may begin, when to ask again, and whether whoever makes room shall say so.
  function gate.queue()
    local limit = limits['queue']
    if not limit then return math.huge, -1, false end
    local scope = scope_at('queue', limit)
    return scope.free, math.max(1, math.min(scope.at - now, 60000)), limit.most > 0
  end

  -- True if this task may begin; else it is noted as waiting for the scope that has no room.
  function gate.admits(id, key, message)
    local fields = redis.call('HMGET', key, 'limit_key', 'order_key', 'pending_since')
    local mine = scopes_of(message, by_key and (fields[1] or fields[2]) or nil)
    local is_called = {}
    for _, scope in ipairs(mine) do
      local kept = scope.kept > 0 and redis.call('ZSCORE', queue_prefix .. 'called:' .. scope.name, id)
      is_called[scope] = kept and true or false
    end
    for _, scope in ipairs(mine) do
      if not is_called[scope] and (scope.free <= 0 or scope.crowd) then
        local arrived = fields[3] and string.sub(fields[3], 1, -4) or whole(now * 1000)
        local names = {}
        for i, one in ipairs(mine) do names[i] = one.name end
        blocked[#blocked + 1] = { id = id, key = key, scope = scope, arrived = arrived, names = names }
        for other, called in pairs(is_called) do
          if called then turned_away[#turned_away + 1] = { id, other.name } end
        end
        return false
      end
    end
    for _, scope in ipairs(mine) do
      if not is_called[scope] then scope.free = scope.free - 1 end
    end
    if limits['queue'] then mine[#mine + 1] = scopes['queue'] end
    if #mine > 0 then admitted[#admitted + 1] = { id = id, key = key, scopes = mine } end
    return true
  end

  -- Write it all down.
  function gate.settle(lease_end)
    for _, task in ipairs(admitted) do
      local held = {}
      for _, scope in ipairs(task.scopes) do
        if scope.limit.most > 0 then held[#held + 1] = scope.name end
        if scope.limit.count > 0 then
          redis.call('RPUSH', queue_prefix .. 'starts:' .. scope.name, whole(now_up))
          scope.begun = true
        end
        if scope.kept > 0 then redis.call('ZREM', queue_prefix .. 'called:' .. scope.name, task.id) end
      end
      if #held > 0 then
        held = cjson.encode(held)
        redis.call('HSET', task.key, 'slots', held)
        keep_slots(queue_prefix, held, task.id, lease_end)
      end
    end
    local touched = {}
    for name, scope in pairs(scopes) do
      if scope.begun then redis.call('PEXPIRE', queue_prefix .. 'starts:' .. name, whole(scope.limit.per + 60000)) end
      touched[name] = scope.begun and scope.crowd -- who was called has begun: when the next one may is known only now
    end
    for _, row in ipairs(turned_away) do redis.call('ZREM', queue_prefix .. 'called:' .. row[2], row[1]) end
    for _, task in ipairs(blocked) do
      local name = task.scope.name
      redis.call('ZADD', queue_prefix .. 'waiting:' .. name, task.arrived, task.id)
      park(queue_prefix, task.id, nanoseconds, name)
      if #task.names > 1 then redis.call('HSET', task.key, 'limit_scopes', cjson.encode(task.names)) end
      touched[name] = true
    end
    for _, row in ipairs(turned_away) do touched[row[2]] = true end
    for name, is_touched in pairs(touched) do
      if is_touched then call_up(queue_prefix, name, now, nanoseconds) end
    end
  end

  return gate
end

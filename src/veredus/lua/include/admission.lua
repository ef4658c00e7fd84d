-- NEEDS  clock lanes limits types

-- scope_named: the scope of this name, read when it first comes up.
local function scope_named(queue_prefix, admission, name, limit)
  local scope = admission.scopes[name]
  if not scope then
    scope = { name = name, limit = limit }
    scope.free, scope.at, scope.kept = room(queue_prefix, name, limit, admission.now)
    scope.has_waiting = redis.call('EXISTS', keys.waiting(name)) == 1
    admission.scopes[name] = scope
  end
  return scope
end

-- spec_for: the limit of this kind for a type: its own, or that of the longest pattern that fits.
local function spec_for(admission, kind, task_type)
  local spec = kind .. task_type
  if admission.limits[spec] then return spec end
  for _, pattern in ipairs(admission.patterns) do
    if string.find(spec, pattern.beginning, 1, true) == 1 then return pattern.spec end
  end
end

-- scopes_of: the scopes that count a task, but for the whole queue's.
local function scopes_of(queue_prefix, admission, message, limit_key)
  local found, limits = {}, admission.limits
  local function add(name, limit) found[#found + 1] = scope_named(queue_prefix, admission, name, limit) end
  if admission.has_types then
    local task_type = type_in(message) or ''
    local spec = spec_for(admission, 'task:', task_type)
    if spec then add(spec, limits[spec]) end
    local key_spec = limit_key and spec_for(admission, 'task-key:', task_type)
    if key_spec then
      local pattern = string.match(key_spec, '^task%-key:(.*)$')
      add('task-key:' .. #pattern .. ':' .. pattern .. ':' .. limit_key, limits[key_spec])
    end
  end
  if limit_key and limits['queue-key'] then add('queue-key:' .. limit_key, limits['queue-key']) end
  return found
end

-- room_in_queue: of the whole queue: how many may begin, when to ask again, and whether a worker is woken when there is room.
local function room_in_queue(queue_prefix, admission)
  local limit = admission.limits['queue']
  if not limit then return math.huge, -1, false end
  local scope = scope_named(queue_prefix, admission, 'queue', limit)
  return scope.free, math.max(1, math.min(scope.at - admission.now, 60000)), limit.most > 0
end

-- admits: true if this task may begin; else it waits for the first scope that has no room.
local function admits(queue_prefix, admission, id, key, message)
  local limit_key, order_key, since = unpack(redis.call('HMGET', key, 'limit_key', 'order_key', 'pending_since'), 1, 3)
  local scopes = scopes_of(queue_prefix, admission, message, admission.has_keys and (limit_key or order_key) or nil)
  local is_called, names = {}, {}
  for i, scope in ipairs(scopes) do
    is_called[scope] = scope.kept > 0 and redis.call('ZSCORE', keys.called(scope.name), id) and true or false
    names[i] = scope.name
  end
  for _, scope in ipairs(scopes) do
    if not is_called[scope] and (scope.free <= 0 or scope.has_waiting) then
      local arrived = since and string.sub(since, 1, -4) or whole(admission.now * 1000)
      local task = { id = id, key = key, scope = scope.name, arrived = arrived, scopes = names }
      admission.refused[#admission.refused + 1] = task
      for other, called in pairs(is_called) do
        if called then admission.given_up[#admission.given_up + 1] = { id = id, scope = other.name } end
      end
      return false
    end
  end
  for _, scope in ipairs(scopes) do
    if not is_called[scope] then scope.free = scope.free - 1 end
  end
  if admission.limits['queue'] then scopes[#scopes + 1] = admission.scopes['queue'] end
  if #scopes > 0 then admission.admitted[#admission.admitted + 1] = { id = id, key = key, scopes = scopes } end
  return true
end

-- begin_admitted: a task begins: it takes its slots, and its start counts.
local function begin_admitted(queue_prefix, task, lease_end, now_up)
  local slots = {}
  for _, scope in ipairs(task.scopes) do
    if scope.limit.most > 0 then slots[#slots + 1] = scope.name end
    if scope.limit.count > 0 then
      redis.call('RPUSH', keys.starts(scope.name), whole(now_up))
      scope.has_begun = true
    end
    if scope.kept > 0 then redis.call('ZREM', keys.called(scope.name), task.id) end
  end
  if #slots > 0 then
    local text = cjson.encode(slots)
    redis.call('HSET', task.key, 'slots', text)
    keep_slots(queue_prefix, text, task.id, lease_end)
  end
end

-- settle_admission: write it all: what begins takes its room, what is refused waits, and scopes that changed are checked again.
local function settle_admission(queue_prefix, admission, lease_end, now_up, nanoseconds)
  local is_touched = {}
  for _, task in ipairs(admission.admitted) do begin_admitted(queue_prefix, task, lease_end, now_up) end
  for name, scope in pairs(admission.scopes) do
    if scope.has_begun then redis.call('PEXPIRE', keys.starts(name), whole(scope.limit.per + 60000)) end
    is_touched[name] = scope.has_begun and scope.has_waiting -- a called task has begun: only now is known when the next one may
  end
  for _, room_kept in ipairs(admission.given_up) do
    redis.call('ZREM', keys.called(room_kept.scope), room_kept.id)
    is_touched[room_kept.scope] = true
  end
  for _, task in ipairs(admission.refused) do
    redis.call('ZADD', keys.waiting(task.scope), task.arrived, task.id)
    park(queue_prefix, task.id, nanoseconds, task.scope)
    if #task.scopes > 1 then redis.call('HSET', task.key, 'limit_scopes', cjson.encode(task.scopes)) end
    is_touched[task.scope] = true
  end
  for name, touched in pairs(is_touched) do
    if touched then call_up(queue_prefix, name, admission.now, nanoseconds) end
  end
end

-- open_admission: what decides which tasks may begin in a queue that has limits, for one batch: the declared limits, and of each
-- scope that comes up how much room there is. `admits` counts along; nothing is written before `settle`.
local function open_admission(queue_prefix, now)
  local admission = {
    now = now,
    limits = {}, -- by what is limited
    patterns = {}, -- those among them that are a type's beginning, the longest first
    has_types = false,
    has_keys = false,
    scopes = {}, -- by name
    admitted = {}, -- tasks that begin
    refused = {}, -- tasks that wait for a scope
    given_up = {}, -- room that was kept for tasks that wait for another scope
    room_in_queue = room_in_queue, admits = admits, settle = settle_admission,
  }
  local declared = redis.call('HGETALL', keys.limits())
  for i = 1, #declared, 2 do
    local spec, limit = declared[i], limit_from(declared[i + 1])
    local is_of_type = string.find(spec, '^task') ~= nil
    admission.limits[spec] = limit
    admission.has_types = admission.has_types or is_of_type
    admission.has_keys = admission.has_keys or string.find(spec, '^%a+%-key') ~= nil
    if limit and is_of_type and string.sub(spec, -1) == '*' then
      admission.patterns[#admission.patterns + 1] = { spec = spec, beginning = string.sub(spec, 1, -2) }
    end
  end
  table.sort(admission.patterns, function(a, b) return #a.spec > #b.spec end)
  return admission
end

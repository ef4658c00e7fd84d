-- Taking tasks out of where they are, so that a script can put them elsewhere. Needs places, locks, checks and lanes.

-- look: what a script has to know of a task before it moves it; nil when there is no such task.
local function look(id)
  local key = task_prefix .. id
  local fields = redis.pcall('HMGET', key, 'state', 'group', 'unique_key', 'expires_at', 'waited', 'order_key', 'limited_by')
  if fields.err then return { id = id, key = key, state = 'wrongtype' } end
  if not fields[1] and redis.call('EXISTS', key) == 0 then return nil end
  return {
    id = id,
    key = key,
    state = fields[1] or '',
    group = fields[2],
    lock = lock_of(key, fields[3], fields[2]),
    expires = fields[4],
    waited = fields[5],
    order_key = fields[6],
    limited_by = fields[7],
  }
end

-- leave_pending: take tasks out of the list. A search through a long list would hold up everybody, so the caller may
-- say where it saw each, counted from the tail (0 is the next to run): since then, tasks can only have moved towards
-- the tail, all by the same number. The places are marked first, then one pass from the nearer end removes the
-- marks.
local MARK = '\0taken'
local function leave_pending(tasks)
  local size = redis.call('LLEN', pending)
  local shift, searched, marked, from_tail, from_head = 0, false, 0, 0, 0
  local function is_at(at, id) return at >= 0 and at < size and redis.call('LINDEX', pending, -1 - at) == id end
  for _, task in ipairs(tasks) do
    local at
    if task.hint then
      at = (is_at(task.hint - shift, task.id) and task.hint - shift) or (is_at(task.hint, task.id) and task.hint) or nil
    end
    if not at and not (task.hint and searched) then
      local found
      if task.hint then
        searched = true
        found = redis.call('LPOS', pending, task.id, 'RANK', -1, 'MAXLEN', task.hint + 1)
      else
        found = redis.call('LPOS', pending, task.id)
      end
      if found then
        at = size - 1 - found
        if task.hint then shift = task.hint - at end
      end
    end
    if at then
      redis.call('LSET', pending, -1 - at, MARK)
      marked = marked + 1
      from_tail, from_head = math.max(from_tail, at), math.max(from_head, size - 1 - at)
      task.taken = true
    end
  end
  if marked > 0 then redis.call('LREM', pending, from_tail <= from_head and -marked or marked, MARK) end
end

-- take: take the tasks named in ARGV out of their containers. `refuse` says by its state why one must stay (a code),
-- or nil. Returns a code per task and those taken. Codes of its own: 1 taken, 0 no such task, -3 it is not where its
-- state says.
local function take(first, count, refuse)
  local codes, found, listed, seen = {}, {}, {}, {}
  for i = 1, count do
    local id, hint = ARGV[first + 2 * i - 2], ARGV[first + 2 * i - 1]
    local task = not seen[id] and look(id)
    seen[id] = true
    codes[i] = task and (refuse(task) or -3) or 0
    if task and codes[i] == -3 then
      task.position, task.hint = i, tonumber(hint)
      found[#found + 1] = task
      if task.state == 'pending' then listed[#listed + 1] = task end
    end
  end
  leave_pending(listed)
  local taken = {}
  for _, task in ipairs(found) do
    if task.state == 'aggregating' then
      task.taken = leave_group(task.group or '', task.id)
    elseif SETS[task.state] then
      task.taken = redis.call('ZREM', SETS[task.state], task.id) == 1
    end
    if task.taken then
      redis.call('ZREM', due, task.id)
      codes[task.position] = 1
      taken[#taken + 1] = task
    end
  end
  return codes, taken
end

-- is_elsewhere: whether a task is where its state says, so that an entry in another container was only a second one. Not
-- asked of pending, which would have to be searched: a second entry there does no harm, dequeue drops it.
local function is_elsewhere(task)
  if task.state == 'active' then
    return score_in(lease, task.id) or redis.call('LPOS', active, task.id)
  elseif task.state == 'aggregating' then
    return true -- in its group, or in a set in flight
  end
  return SETS[task.state] and score_in(SETS[task.state], task.id)
end

-- take_first: take up to `limit` tasks from the end of a container that comes first: the next to run, the soonest
-- due, the oldest. Ids without a task are dropped on the way. Returns the tasks and the number of ids that left the
-- container. `but_parked`: not those that wait for their turn.
local function take_first(state, group, limit, but_parked)
  local source = state == 'pending' and pending or state == 'aggregating' and group_prefix .. group or SETS[state]
  local ids = {}
  if state == 'pending' then
    local tail = redis.call('LRANGE', source, -limit, -1)
    for i = #tail, 1, -1 do ids[#ids + 1] = tail[i] end
    redis.call('LTRIM', source, 0, -#ids - 1)
  else
    local last = but_parked and state == 'scheduled' and '(' .. PARKED or '+inf'
    ids = redis.call('ZRANGEBYSCORE', source, '-inf', last, 'LIMIT', 0, limit)
    in_chunks('ZREM', source, ids)
    if state == 'aggregating' and redis.call('EXISTS', source) == 0 then redis.call('SREM', groups, group) end
  end
  local tasks, seen = {}, {}
  for _, id in ipairs(ids) do
    local task = not seen[id] and look(id)
    seen[id] = true
    if task and task.state ~= 'wrongtype' then
      if redis.call('HEXISTS', task.key, 'msg') == 0 then
        redis.call('DEL', task.key)
      elseif task.state == state or not is_elsewhere(task) then
        tasks[#tasks + 1] = task
      end
    end
  end
  if state == 'scheduled' or state == 'retry' then in_chunks('ZREM', due, ids) end
  return tasks, #ids
end

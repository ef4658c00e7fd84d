-- NEEDS  places fields locks chunks lanes

-- Taking tasks out of where they are, so that a script can put them elsewhere.

-- look: what a script has to know of a task before it moves it; nil when there is no such task.
local function look(id)
  local key = keys.task(id)
  local task = read_task(key, 'state', 'group', 'unique_key', 'expires_at', 'waited', 'order_key', 'limited_by')
  if not task then return { id = id, key = key, state = 'wrongtype' } end
  if not task.state and redis.call('EXISTS', key) == 0 then return nil end
  return {
    id = id,
    key = key,
    state = task.state or '',
    group = task.group,
    lock = lock_of(key, task.unique_key, task.group),
    expires = task.expires_at,
    waited = task.waited,
    order_key = task.order_key,
    limited_by = task.limited_by,
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

-- take: take the wanted tasks, { id, seen_at } each, out of their containers. `refuse` says by its state why one must stay (a code),
-- or nil. Returns a code per task and those taken. Codes of its own: 1 taken, 0 no such task, -3 it is not where its
-- state says.
local function take(wanted, refuse)
  local codes, found, listed, seen = {}, {}, {}, {}
  for i, it in ipairs(wanted) do
    local task = not seen[it.id] and look(it.id)
    seen[it.id] = true
    codes[i] = task and (refuse(task) or -3) or 0
    if task and codes[i] == -3 then
      task.position, task.hint = i, it.seen_at
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

-- take_one: take one task. Returns its code, and the task if it was taken.
local function take_one(task_id, seen_at, refuse)
  local codes, tasks = take({ { id = task_id, seen_at = seen_at } }, refuse)
  local code, task = unpack(codes, 1, 1), unpack(tasks, 1, 1)
  return code, task
end

-- has_own_place: whether a task is where its state says, so that an entry in another container was only a second one. Not
-- asked of pending, which would have to be searched: a second entry there does no harm, dequeue drops it.
local function has_own_place(task)
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
  local source = state == 'pending' and pending or state == 'aggregating' and keys.group(group) or SETS[state]
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
      elseif task.state == state or not has_own_place(task) then
        tasks[#tasks + 1] = task
      end
    end
  end
  if state == 'scheduled' or state == 'retry' then in_chunks('ZREM', due, ids) end
  return tasks, #ids
end

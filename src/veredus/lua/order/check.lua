-- check: what is wrong with one task's place in its lane or among those that wait for a limit; `apply` repairs it.
-- KEYS  lanes
-- ARGV  queue_prefix task_id seen_in apply:flag
-- RETURNS  {kind, detail, ...}; nothing when all is well
-- NEEDS  clock checks fields sets lanes
-- `seen_in`: a lane in which the id was seen; empty to ask the task itself.
local now, _, nanoseconds = clock()
local key = keys.task(task_id)
local task = read_task(key, 'state', 'order_key', 'limited_by', 'order_hold') or {}
local state, order_key, scope = task.state, task.order_key, task.limited_by
expect(lanes, 'zset')

if seen_in ~= '' then
  local lane = keys.lane(seen_in)
  if not has_member(lane, task_id) then return {} end
  local is_here = order_key == seen_in
    and (state == 'pending' or state == 'active' or state == 'retry' or (state == 'archived' and task.order_hold)
      or (state == 'scheduled' and is_parked(queue_prefix, task_id, order_key)))
  local is_first = first_of(lane) == task_id
  local is_idle = is_here and is_first and state == 'scheduled'
    and not (scope and redis.call('ZSCORE', keys.waiting(scope), task_id))
  if apply and (not is_here or is_idle) then
    if not is_here then redis.call('ZREM', lane, task_id) end
    next_turn(queue_prefix, seen_in, nanoseconds)
  end
  if not is_here then return { 'order_stray', seen_in } end
  if is_idle then return { 'order_stopped', seen_in } end
  return {}
end

if state ~= 'scheduled' or not is_parked(queue_prefix, task_id, order_key or scope) then return {} end
if order_key and has_member(keys.lane(order_key), task_id) then return {} end
if scope and has_member(keys.waiting(scope), task_id) then return {} end
if apply then
  if order_key and not join_lane(queue_prefix, order_key, task_id, now) then
    next_turn(queue_prefix, order_key, nanoseconds)
  else
    into_line(queue_prefix, task_id, nil, nanoseconds)
    redis.call('HDEL', key, 'limited_by')
  end
end
return { 'waiting_nowhere', order_key or scope or '' }

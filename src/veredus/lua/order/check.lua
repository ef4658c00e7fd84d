-- check: what is wrong with one task's place in its lane or in the line for a limit, put right if told to.
-- KEYS  lanes
-- ARGV  queue_prefix task_id order_key apply [now_ms]
-- RETURNS  {kind, detail, ...}; nothing when all is well
-- include: clock checks lanes limits
-- `order_key`: a lane in which the id was seen; empty to ask the task itself.
local queue_prefix, id, seen_in, apply = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local now, _, nanoseconds = clock(ARGV[5])
local key = queue_prefix .. 't:' .. id
local fields = redis.pcall('HMGET', key, 'state', 'order_key', 'limited_by', 'order_hold')
local state, order_key, scope, holds_up = '', nil, nil, nil
if not fields.err then state, order_key, scope, holds_up = fields[1] or '', fields[2], fields[3], fields[4] end
expect(KEYS[1], 'zset')

if seen_in ~= '' then
  local lane = queue_prefix .. 'lane:' .. seen_in
  if type(redis.pcall('ZSCORE', lane, id)) ~= 'string' then return {} end
  local is_here = order_key == seen_in
    and (state == 'pending' or state == 'active' or state == 'retry' or (state == 'archived' and holds_up)
      or (state == 'scheduled' and is_parked(queue_prefix, id, order_key)))
  local is_first = redis.call('ZRANGE', lane, 0, 0)[1] == id
  local is_idle = is_here and is_first and state == 'scheduled'
    and not (scope and redis.call('ZSCORE', queue_prefix .. 'waiting:' .. scope, id))
  if apply and (not is_here or is_idle) then
    if not is_here then redis.call('ZREM', lane, id) end
    next_turn(queue_prefix, seen_in, nanoseconds)
  end
  if not is_here then return { 'lane_stray', seen_in } end
  if is_idle then return { 'lane_stopped', seen_in } end
  return {}
end

if state ~= 'scheduled' or not is_parked(queue_prefix, id, order_key or scope) then return {} end
local in_lane = order_key and redis.pcall('ZSCORE', queue_prefix .. 'lane:' .. order_key, id)
local in_line = scope and redis.pcall('ZSCORE', queue_prefix .. 'waiting:' .. scope, id)
if type(in_lane) == 'string' or type(in_line) == 'string' then return {} end
if apply then
  if order_key and not join_lane(queue_prefix, order_key, id, now) then
    next_turn(queue_prefix, order_key, nanoseconds)
  else
    into_line(queue_prefix, id, nil, nanoseconds)
    redis.call('HDEL', key, 'limited_by')
  end
end
return { 'parked_nowhere', order_key or scope or '' }

-- examine: where tasks are, as far as that can be told quickly: all sorted sets, but not the lists.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix with_messages max_bytes count {task_id}* [now_ms]
-- RETURNS  {state (empty: no hash, !: no hash but another type), 1 if it has a message, the message, sets that have
--   it joined by commas, 1 if it is leased, ...} for as many of the tasks as fit into max_bytes
-- include: clock checks places
local with_messages, max_bytes, count = ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4])
local rows, bytes = {}, 0
for i = 5, 4 + count do
  if bytes > max_bytes then break end
  local id = ARGV[i]
  local key = task_prefix .. id
  local fields = redis.pcall('HMGET', key, 'state', 'group')
  local state, has, message = '', 0, false
  if fields.err then
    state = '!'
  elseif redis.call('EXISTS', key) == 1 then
    state = fields[1] or '?'
    has = redis.call('HEXISTS', key, 'msg')
    if with_messages and has == 1 then
      message = redis.call('HGET', key, 'msg')
      bytes = bytes + #message
    end
  end
  local names = {}
  for name, set in pairs(SETS) do
    if score_in(set, id) then names[#names + 1] = name end
  end
  if not fields.err and fields[2] and score_in(group_prefix .. fields[2], id) then names[#names + 1] = 'aggregating' end
  local leased = score_in(lease, id) and 1 or 0
  for _, value in ipairs({ state, has, message, table.concat(names, ','), leased }) do rows[#rows + 1] = value end
end
return rows

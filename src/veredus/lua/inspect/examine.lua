-- examine: where tasks are, as far as that can be checked quickly: all sorted sets, but not the lists.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix with_messages:flag max_bytes:number ROWS task_id
-- RETURNS  {state (empty: no hash, !: no hash but another type), 1 if it has a message, the message, sets that have
--   it joined by commas, 1 if it is leased, ...} for as many of the tasks as fit into max_bytes
-- NEEDS  fields places
local found, bytes = {}, 0
for _, task_id in rows() do
  if bytes > max_bytes then break end
  local key = keys.task(task_id)
  local task = read_task(key, 'state', 'group')
  local state, has, message = '', 0, false
  if not task then
    state = '!'
  elseif redis.call('EXISTS', key) == 1 then
    state = task.state or '?'
    has = redis.call('HEXISTS', key, 'msg')
    if with_messages and has == 1 then
      message = redis.call('HGET', key, 'msg')
      bytes = bytes + #message
    end
  end
  local names = {}
  for name, set in pairs(SETS) do
    if score_in(set, task_id) then names[#names + 1] = name end
  end
  if task and task.group and score_in(keys.group(task.group), task_id) then names[#names + 1] = 'aggregating' end
  local leased = score_in(lease, task_id) and 1 or 0
  for _, value in ipairs({ state, has, message, table.concat(names, ','), leased }) do found[#found + 1] = value end
end
return found

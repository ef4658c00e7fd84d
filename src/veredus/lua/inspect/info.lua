-- info: everything that is known about some tasks.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix ROWS task_id
-- RETURNS  {now_ms, {state (empty: no such task), message, result, score in its container, due ms or lease end,
--   held, ...}}
-- NEEDS  clock fields places
local now = clock()
local found = {}
for _, task_id in rows() do
  local task = read_task(keys.task(task_id), 'state', 'msg', 'result', 'held') or {}
  local state, score, extra = task.state, false, false
  if state and SETS[state] then score = score_in(SETS[state], task_id) or false end
  if state == 'active' then extra = score_in(lease, task_id) or false end
  if state == 'scheduled' or state == 'retry' then extra = score_in(due, task_id) or false end
  for _, value in ipairs({ state or '', task.msg or false, task.result or false, score, extra, task.held or false }) do
    found[#found + 1] = value
  end
end
return { now, found }

-- info: everything that is known of some tasks.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix count {task_id}* [now_ms]
-- RETURNS  {now_ms, {state (empty: no such task), message, result, score in its container, due ms or lease end,
--   held, ...}}
-- include: clock checks places
local count = tonumber(ARGV[2])
local now = clock(ARGV[3 + count])

local rows = {}
for i = 1, count do
  local id = ARGV[2 + i]
  local fields = redis.pcall('HMGET', task_prefix .. id, 'state', 'msg', 'result', 'held')
  if fields.err then fields = { false, false, false, false } end
  local state, score, extra = fields[1], false, false
  if state and SETS[state] then score = score_in(SETS[state], id) or false end
  if state == 'active' then extra = score_in(lease, id) or false end
  if state == 'scheduled' or state == 'retry' then extra = score_in(due, id) or false end
  for _, value in ipairs({ state or '', fields[2], fields[3], score, extra, fields[4] }) do
    rows[#rows + 1] = value
  end
end
return { now, rows }

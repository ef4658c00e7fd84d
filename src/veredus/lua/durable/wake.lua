-- wake: store the outcomes of waits; a task that is parked for one of them is the next to run.
-- KEYS  pending scheduled due waits
-- ARGV  queue_prefix ROWS task_id mark field outcome
-- RETURNS  number of tasks that were called back
-- NEEDS  clock checks fields grow waits
-- An outcome is stored whatever the task is doing, and the first one counts. One with another mark is another run of that id.
local now, _, nanoseconds = clock()
expect(pending, 'list')
expect(scheduled, 'zset')
expect(due, 'zset')
expect(waits, 'zset')
local woken = 0
for _, task_id, mark, field, outcome in rows() do
  local key = keys.task(task_id)
  local task = read_task(key, 'run', 'state', 'waiting', 'unique_key') or {}
  if task.run == mark then
    if not is_outcome(redis.call('HGET', key, field)) then
      grow('HSET', key, field, outcome)
      note_came(key, field, now)
    end
    local _, _, _, waits_for = read_wait(task.waiting or '')
    if task.state == 'scheduled' and waits_for == field and call_back(queue_prefix, task_id, task.unique_key, nanoseconds) then
      woken = woken + 1
    end
  end
end
return woken

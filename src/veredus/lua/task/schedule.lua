-- schedule: store new tasks that are due later, to the millisecond, and wake the forwarders if that changes their plan.
-- KEYS  scheduled retry due sent
-- ARGV  queue_prefix channel number lifetime ROWS task_id message unique_key unique_ttl expires due_at group
-- RETURNS  one code per task: 1 scheduled, 0 the id exists, -1 another task holds the unique lock;
--   only -4 for all: the queue is closed, -5: `sent` has another call
-- NEEDS  clock checks wakeup sent new_task
local now, now_up, _, beyond = clock()
expect(scheduled, 'zset')
expect(due, 'zset')
for i, unique_key, unique_ttl in rows() do expect_ttl(unique_key, unique_ttl) end
local first_id = rows(1).task_id
local answered = answer_without_storing(queue_prefix, sent, number, lifetime, first_id, rows_count)
if answered then return answered end

local before, first_new = earliest(due, scheduled, retry), nil
local codes = {}
for i, task_id, message, unique_key, unique_ttl, expires, due_at, group in rows() do
  local key, at = keys.task(task_id), instant(due_at, now, beyond)
  codes[i] = refusal(key, task_id, unique_key, unique_ttl, at - now)
  if not codes[i] then
    store_task(key, message, 'scheduled', unique_key, expires, now_up)
    if group ~= '' then redis.call('HSET', key, 'due_group', group) end -- the group that it joins: see include/due_group.lua
    plan_task(scheduled, due, task_id, at)
    if not first_new or at < first_new then first_new = at end
    codes[i] = 1
  end
end
announce(channel, before, first_new, now)
return sent_now(sent, number, lifetime, first_id, codes)

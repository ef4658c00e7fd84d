-- step: keep the results of steps, and other fields of running durable tasks.
-- KEYS  lease
-- ARGV  queue_prefix ROWS task_id owner field value
-- RETURNS  positions (from 1) of the rows whose task this owner no longer holds; nothing was changed for them
-- NEEDS  checks grow ownership
-- A fan-out of a task that is being cancelled with its children is noted for that.
expect(lease, 'zset')
local lost = {}
for i, task_id, owner, field, value in rows() do
  local key = keys.task(task_id)
  if owned(key, lease, task_id, owner) then
    grow('HSET', key, field, value)
    if string.sub(field, 1, 2) == 'g:' then
      local cancel, with_kids = unpack(redis.call('HMGET', key, 'cancel', 'cancel_kids'), 1, 2)
      if cancel and with_kids then
        -- include: orphans
        note_orphans(queue_prefix, task_id, with_kids)
      end
    end
  else
    lost[#lost + 1] = i
  end
end
return lost

-- add: put new tasks into their groups, where they wait to be aggregated.
-- KEYS  groups sent
-- ARGV  queue_prefix number lifetime ROWS task_id message unique_key unique_ttl expires group
-- RETURNS  one code per task: 1 added, 0 the id exists, -1 another task holds the unique lock;
--   only -4 for all: the queue is closed, -5: `sent` has another call
-- NEEDS  clock checks arrival sent new_task
local now, now_up, nanoseconds = clock()
expect(groups, 'set')
for i, unique_key, unique_ttl, group in rows() do
  expect_ttl(unique_key, unique_ttl)
  expect(keys.group(group), 'zset')
end
local first_id = rows(1).task_id
local answered = answer_without_storing(queue_prefix, sent, number, lifetime, first_id, rows_count)
if answered then return answered end

local second = whole(math.floor(now / 1000))
local codes = {}
for i, task_id, message, unique_key, unique_ttl, expires, group in rows() do
  local key = keys.task(task_id)
  codes[i] = refusal(key, task_id, unique_key, unique_ttl, 0)
  if not codes[i] then
    local place = arrival(nanoseconds, i)
    store_task(key, message, 'aggregating', unique_key, expires, now_up, 'group', group, 'group_seq', place)
    redis.call('ZADD', keys.group(group), second, task_id)
    redis.call('SADD', groups, group)
    codes[i] = 1
  end
end
return sent_now(sent, number, lifetime, first_id, codes)

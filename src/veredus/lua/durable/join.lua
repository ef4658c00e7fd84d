-- join: keep the outcomes of children; a parent that has all of a fan-out and waits for it is the next to run.
-- KEYS  pending scheduled due waits
-- ARGV  queue_prefix ROWS task_id mark name position:number outcome
-- RETURNS  number of parents that were called back
-- NEEDS  clock checks fields grow waits
-- Outcomes are in hashes of 1,000 positions, which live for 30 days after the last one. The first outcome of a child counts. A
-- child of another run of the same id has another mark. A parent that has completed needs none: its outcomes have been freed.
local SIZE, TTL = 1000, 2592000
local now, _, nanoseconds = clock()
expect(pending, 'list')
expect(scheduled, 'zset')
expect(due, 'zset')
expect(waits, 'zset')

local parents, touched = {}, {}
for _, task_id, mark, name, position, outcome in rows() do
  local parent = parents[task_id]
  if not parent then
    parent = read_task(keys.task(task_id), 'run', 'state', 'waiting', 'unique_key') or {}
    parents[task_id] = parent
  end
  if parent.run == mark and parent.state ~= 'completed' then
    local kids = keys.kids(task_id, mark, name, math.floor(position / SIZE))
    grow('HSETNX', kids, whole(position), outcome)
    touched[task_id .. '\0' .. name] = { id = task_id, mark = mark, name = name, parent = parent }
    touched[kids] = kids
  end
end

-- all_there: whether every child of a fan-out has an outcome.
local function all_there(one)
  local count = tonumber(string.match(redis.call('HGET', keys.task(one.id), 'g:' .. one.name) or '', '^%d+'))
  if not count then return false end
  for chunk = 0, math.ceil(count / SIZE) - 1 do
    local size = math.min(SIZE, count - chunk * SIZE)
    if redis.call('HLEN', keys.kids(one.id, one.mark, one.name, chunk)) < size then return false end
  end
  return true
end

local woken = 0
for _, one in pairs(touched) do
  if type(one) == 'string' then
    redis.call('EXPIRE', one, TTL)
  elseif all_there(one) then
    local key, field = keys.task(one.id), 'o:' .. one.name
    if redis.call('HEXISTS', key, field) == 0 then
      grow('HSET', key, field, '+')
      note_came(key, 'g:' .. one.name, now)
    end
    local _, _, _, waits_for = read_wait(one.parent.waiting or '')
    local is_waiting = one.parent.state == 'scheduled' and waits_for == field
    if is_waiting and call_back(queue_prefix, one.id, one.parent.unique_key, nanoseconds) then woken = woken + 1 end
  end
end
return woken

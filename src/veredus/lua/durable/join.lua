-- join: keep the outcomes of children; a parent that has all of a fan-out and waits for it is the next to run.
-- KEYS  pending scheduled due waits
-- ARGV  queue_prefix ROWS task_id mark name position:number outcome
-- RETURNS  number of parents that were called back
-- NEEDS  clock checks fields grow notify_waiters waits
-- Outcomes are in hashes of 1,000 positions, which live for 30 days after the last one. The first outcome of a child counts. A
-- child of another run of the same id has another mark. A parent that has completed needs none: its outcomes have been freed.
-- While the parent waits, those that follow it see how far it is.
local SIZE, TTL, MOST = 1000, 2592000, 10000000
local now, _, nanoseconds = clock()
expect(pending, 'list')
expect(scheduled, 'zset')
expect(due, 'zset')
expect(waits, 'zset')

local parents, touched = {}, {}
for _, task_id, mark, name, position, outcome in rows() do
  local parent = parents[task_id]
  if not parent then
    parent = read_task(keys.task(task_id), 'run', 'state', 'waiting', 'unique_key', 'waited') or {}
    parents[task_id] = parent
  end
  if parent.run == mark and parent.state ~= 'completed' then
    local kids = keys.kids(task_id, mark, name, math.floor(position / SIZE))
    grow('HSETNX', kids, whole(position), outcome)
    touched[task_id .. '\0' .. name] = { id = task_id, mark = mark, name = name, parent = parent }
    touched[kids] = kids
  end
end

-- count_ended: how many children of a fan-out have an outcome, and how many there are; nothing if it is not known. A number that
-- no fan-out has would be counted for ever. Where only the end matters, the first hash that is not full ends the counting.
local function count_ended(one, is_followed)
  local count = tonumber(string.match(redis.call('HGET', keys.task(one.id), 'g:' .. one.name) or '', '^%d+'))
  if not count or count > MOST then return 0, nil end
  local ended = 0
  for chunk = 0, math.ceil(count / SIZE) - 1 do
    local most = math.min(SIZE, count - chunk * SIZE)
    local here = math.min(redis.call('HLEN', keys.kids(one.id, one.mark, one.name, chunk)), most)
    ended = ended + here
    if here < most and not is_followed then break end
  end
  return ended, count
end

-- report: how far a waiting parent is, as `current().progress` does for a running one.
local function report(one, ended, count)
  local note = string.gsub(one.name, '%z', ' #') .. ': ' .. ended .. ' of ' .. count
  local progress = cjson.encode({ share = ended / count, note = note, at = now / 1000 })
  grow('HSET', keys.task(one.id), 'progress', progress)
  notify_waiters(one.parent.waited, 'progress', keys.task(one.id), progress)
end

local woken = 0
for _, one in pairs(touched) do
  if type(one) == 'string' then
    redis.call('EXPIRE', one, TTL)
  else
    local is_followed = one.parent.waited
    local ended, count = count_ended(one, is_followed)
    local key, field = keys.task(one.id), 'o:' .. one.name
    local _, _, _, waits_for = read_wait(one.parent.waiting or '')
    local is_waiting = one.parent.state == 'scheduled' and waits_for == field
    -- One child alone says nothing about how far its parent is: what the handler reported stays.
    if is_waiting and is_followed and (count or 1) > 1 then report(one, ended, count) end
    if ended == count then
      if redis.call('HEXISTS', key, field) == 0 then
        grow('HSET', key, field, '+')
        note_came(key, 'g:' .. one.name, now)
      end
      if is_waiting and call_back(queue_prefix, one.id, one.parent.unique_key, nanoseconds) then woken = woken + 1 end
    end
  end
end
return woken

-- NEEDS  checks clock fields grow notify_waiters waits

-- Outcomes of children are kept in hashes of 1,000 positions, which live for 30 days after the last one. The first outcome of a child
-- counts. A child of another run of the same id has another mark. A parent that has completed needs none: its outcomes have been freed.
local SIZE, TTL, MOST = 1000, 2592000, 10000000

-- keep_outcome: keep the outcome of a child with its parent. `parents` has what is known of those of this call, by id: what was kept
-- is noted there. Returns whether this queue has the run that the child belongs to.
local function keep_outcome(queue_prefix, parents, task_id, mark, name, position, outcome)
  local parent = parents[task_id]
  if not parent then
    parent = read_task(keys.task(task_id), 'run', 'state', 'waiting', 'unique_key', 'waited') or {}
    parent.fan_outs = {}
    parents[task_id] = parent
  end
  if parent.run ~= mark or parent.state == 'completed' then return false end
  local touched = parent.fan_outs[name]
  if not touched then
    touched = {}
    parent.fan_outs[name] = touched
  end
  local chunk = math.floor(position / SIZE)
  local kids = touched[chunk]
  if not kids then
    kids = keys.kids(task_id, mark, name, chunk)
    touched[chunk] = kids
  end
  grow('HSETNX', kids, whole(position), outcome)
  return true
end

-- count_ended: how many children of a fan-out have an outcome, and how many there are; nothing if it is not known. A number that
-- no fan-out has would be counted for ever. Where only the end matters, the first hash that is not full ends the counting.
local function count_ended(queue_prefix, id, mark, name, is_followed)
  local count = tonumber(string.match(redis.call('HGET', keys.task(id), 'g:' .. name) or '', '^%d+'))
  if not count or count > MOST then return 0, nil end
  local ended = 0
  for chunk = 0, math.ceil(count / SIZE) - 1 do
    local most = math.min(SIZE, count - chunk * SIZE)
    local here = math.min(redis.call('HLEN', keys.kids(id, mark, name, chunk)), most)
    ended = ended + here
    if here < most and not is_followed then break end
  end
  return ended, count
end

-- report: how far a waiting parent is, as `current().progress` does for a running one.
local function report(queue_prefix, id, waited, name, ended, count)
  local note = string.gsub(name, '%z', ' #') .. ': ' .. ended .. ' of ' .. count
  local progress = cjson.encode({ share = ended / count, note = note, at = clock() / 1000 })
  grow('HSET', keys.task(id), 'progress', progress)
  notify_waiters(waited, 'progress', keys.task(id), progress)
end

-- call_parents: the parents that have all outcomes of a fan-out and wait for it are the next to run; while they wait, those that
-- follow them see how far they are. Returns how many were called back.
local function call_parents(queue_prefix, parents)
  local now, _, nanoseconds = clock()
  local woken = 0
  for id, parent in pairs(parents) do
    local key, is_followed = keys.task(id), parent.waited
    for name, touched in pairs(parent.fan_outs) do
      for _, kids in pairs(touched) do redis.call('EXPIRE', kids, TTL) end
      local ended, count = count_ended(queue_prefix, id, parent.run, name, is_followed)
      local field = 'o:' .. name
      local _, _, _, waits_for = read_wait(parent.waiting or '')
      local is_waiting = parent.state == 'scheduled' and waits_for == field
      -- One child alone says nothing about how far its parent is: what the handler reported stays.
      if is_waiting and is_followed and (count or 1) > 1 then report(queue_prefix, id, parent.waited, name, ended, count) end
      if ended == count then
        if redis.call('HEXISTS', key, field) == 0 then
          grow('HSET', key, field, '+')
          note_came(key, 'g:' .. name, now)
        end
        if is_waiting and call_back(queue_prefix, id, parent.unique_key, nanoseconds) then woken = woken + 1 end
      end
    end
  end
  return woken
end

-- parts_of: queue, id, mark and fan-out of a parent, as its channel names them (store/tasks/children.py).
local function parts_of(fan_out)
  local parts = {}
  for part in string.gmatch(fan_out, '[^|]+') do
    parts[#parts + 1] = string.gsub(part, '%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  end
  return #parts == 4 and parts
end

-- join_children: of tasks that completed, keep the outcomes of those that only one parent in this queue waits for. Returns the others. It
-- never fails a settlement: then all are returned, and what is kept a second time changes nothing.
local function join_children(queue_prefix, children)
  local parents, fan_outs, rest = {}, {}, {}
  local is_done = pcall(function()
    expect(keys.pending(), 'list')
    expect(keys.scheduled(), 'zset')
    expect(keys.due(), 'zset')
    expect(keys.waits(), 'zset')
    for _, child in ipairs(children) do
      local fan_out, position = string.match(child.waited, '^%^(%S+)|(%d+)$')
      local parts = fan_out and child.outcome and (fan_outs[fan_out] or parts_of(fan_out))
      if parts then
        fan_outs[fan_out] = parts
        local _, task_id, mark, name = unpack(parts)
        position = tonumber(position)
        if not keep_outcome(queue_prefix, parents, task_id, mark, name, position, child.outcome) then parts = nil end
      end
      if not parts then rest[#rest + 1] = child end
    end
    call_parents(queue_prefix, parents)
  end)
  return is_done and rest or children
end

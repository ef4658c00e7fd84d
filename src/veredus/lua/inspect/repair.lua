-- repair: find what is wrong with the places of one task, all checked in the same instant, and repair it if `apply`.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix task_id seen_group apply:flag
-- RETURNS  {kind, detail, ...} of every breach found (and repaired); nothing when all is well
-- NEEDS  clock fields ownership places
-- `seen_group`: a group in which the id was seen, besides the one that its hash names. No message is ever deleted here: a
-- task that is nowhere goes where its state says, or to pending; of two places the one that its state says stays.
local now, _, nanoseconds = clock()
local seconds = whole(math.floor(now / 1000))
local key = keys.task(task_id)
local breaches = {}
local function breach(kind, detail)
  breaches[#breaches + 1] = kind
  breaches[#breaches + 1] = detail or ''
end

-- Where it is: {state, key, times, score}. A key of a wrong type has nothing; that is a breach of its own.
local places = {}
local function place(state, at, times, score)
  if times > 0 then places[#places + 1] = { state = state, key = at, times = times, score = score } end
end
for state, list in pairs({ pending = pending, active = active }) do
  local found = redis.pcall('LPOS', list, task_id, 'COUNT', 0)
  place(state, list, not found.err and #found or 0)
end
for _, state in ipairs({ 'retry', 'scheduled', 'archived', 'completed' }) do
  local score = score_in(SETS[state], task_id)
  place(state, SETS[state], score and 1 or 0, score)
end
local task = read_task(key, 'state', 'group', 'held')
local state, group, held = '', nil, nil
if task then state, group, held = task.state or '', task.group, task.held end
for _, name in ipairs({ group or seen_group, seen_group ~= group and seen_group or '' }) do
  local score = name and name ~= '' and score_in(keys.group(name), task_id)
  if score then
    place('aggregating', keys.group(name), 1, score)
    places[#places].group = name
  end
end
local sets = redis.pcall('ZRANGE', aggregation_sets, 0, 999)
for _, set in ipairs(sets.err and {} or sets) do
  local score = name_under_groups(set) and score_in(set, task_id)
  if score then
    place('aggregating', set, 1, score)
    places[#places].staged = true
  end
end
local lease_end, exact = score_in(lease, task_id), score_in(due, task_id)
local names = {}
for _, it in ipairs(places) do names[#names + 1] = it.times > 1 and it.state .. ' x' .. it.times or it.state end
local where = table.concat(names, ', ')

local function leave(it)
  if it.state == 'pending' or it.state == 'active' then
    redis.call('LREM', it.key, 0, task_id)
  else
    redis.call('ZREM', it.key, task_id)
    if it.group and redis.call('EXISTS', it.key) == 0 then redis.call('SREM', groups, it.group) end
  end
end
local function leave_everything()
  for _, it in ipairs(places) do leave(it) end
  if lease_end then redis.call('ZREM', lease, task_id) end
  if exact then redis.call('ZREM', due, task_id) end
end

-- No task at all.
if not task or redis.call('HEXISTS', key, 'msg') == 0 then
  local exists = redis.call('EXISTS', key) == 1
  if not task then
    breach('wrong_type', redis.call('TYPE', key).ok)
  elseif exists then
    breach('no_message', where)
  elseif where ~= '' then
    breach('dangling', where)
  elseif lease_end then
    breach('lease_only')
  elseif exact then
    breach('stale_due')
  end
  if apply and #breaches > 0 then
    leave_everything()
    if not task then redis.call('RENAME', key, keys.damaged_task(task_id)) end
    if exists and task then redis.call('DEL', key) end
  end
  return breaches
end

-- Which place stays: what the state says (a set in flight before its group); else the one from which it will run
-- soonest.
local home
for _, it in ipairs(places) do
  if it.state == state and (not home or it.staged) then home = it end
end
if not home then
  for _, wanted in ipairs({ 'active', 'pending', 'retry', 'scheduled', 'aggregating', 'archived', 'completed' }) do
    for _, it in ipairs(places) do
      if not home and it.state == wanted and (wanted ~= 'active' or lease_end or #places == 1) then home = it end
    end
  end
  home = home or places[1]
end
if #places > 1 or (home and home.times > 1) then breach('two_places', where) end
if home and home.state ~= state then breach('wrong_state', state .. ' but in ' .. where) end
if apply then
  for _, it in ipairs(places) do
    if it ~= home then leave(it) end
  end
  if home and home.times > 1 then redis.call('LREM', home.key, home.times - 1, task_id) end
  if home and home.state ~= state then redis.call('HSET', key, 'state', home.state) end
end

if not home then -- it is nowhere
  breach('orphan', state)
  home = { state = 'pending', key = pending }
  if SETS[state] and (state == 'archived' or state == 'completed' or exact) then
    local score = state == 'completed' and whole(math.floor(now / 1000) + 86400) or seconds
    if state ~= 'archived' and state ~= 'completed' then score = whole(math.ceil(tonumber(exact) / 1000)) end
    home = { state = state, key = SETS[state], score = score }
  elseif state == 'aggregating' and group then
    home = { state = state, key = keys.group(group), score = seconds, group = group }
  end
  if apply then
    if home.score then redis.call('ZADD', home.key, home.score, task_id) else redis.call('LPUSH', pending, task_id) end
    redis.call('HSET', key, 'state', home.state)
    if home.state == 'pending' then redis.call('HSET', key, 'pending_since', nanoseconds) end
  end
end

-- What belongs to the place.
if home.state == 'active' and not lease_end then
  breach('no_lease')
  -- One that is not ours: the recoverer takes it after the slack, as any other whose worker has gone.
  if apply then redis.call('ZADD', lease, seconds, task_id) end
elseif home.state ~= 'active' and lease_end then
  breach('lease_only', home.state)
  if apply then redis.call('ZREM', lease, task_id) end
end
if apply and home.state ~= 'active' then redis.call('HDEL', key, 'held') end
local waits = home.state == 'scheduled' or home.state == 'retry'
if exact and not (waits and home.score and math.ceil(tonumber(exact) / 1000) == math.ceil(tonumber(home.score))) then
  breach('stale_due', exact)
  if apply then redis.call('ZREM', due, task_id) end
end
local scores = { { set = home.key, score = home.score }, { set = lease, score = home.state == 'active' and lease_end } }
for _, it in ipairs(scores) do
  if it.score and tonumber(it.score) % 1 ~= 0 then
    breach('fraction', it.score)
    if apply then
      local rounded = whole(math.ceil(tonumber(it.score)))
      redis.call('ZADD', it.set, rounded, task_id)
      if it.set == lease and is_ours(held, it.score) then
        redis.call('HSET', key, 'held', held_by(owner_in(held, it.score), rounded))
      end
    end
  end
end
if home.group and redis.pcall('SISMEMBER', groups, home.group) == 0 then
  breach('unlisted_group', home.group)
  if apply then redis.call('SADD', groups, home.group) end
end
return breaches

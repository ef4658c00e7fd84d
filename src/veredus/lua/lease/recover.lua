-- recover: claim tasks whose worker has gone, for one recoverer, without ever taking them out of active.
-- KEYS  lease active
-- ARGV  queue_prefix limit:number owner claim_ms:number foreign_slack_ms:number since_ms:number max_gap_ms:number
--   furthest_ms:number dead_worker
-- RETURNS  {now_ms, 1 if it swept or 0 if it only noted the time,
--   {id, message, leases lost so far, the owner that lost it (empty: none of ours), ...}, {tidied id, ...},
--   the instant in ms at which the next lease will expire, or -1, {claimed id, how to cancel it, ...},
--   1 if the queue has lanes or 0, more than 0 if it has waiting tasks, or children to relay or to cancel}
-- NEEDS  clock checks fields grow ownership limits marks
-- A claim re-arms the lease for a short while and makes the recoverer its owner; only retry or archive remove the task.
-- So a recoverer that dies loses nothing, and of several recoverers exactly one gets each task.
-- A server that stood still, or whose clock was set forward, makes living tasks look dead, because this sweep may run before
-- the next heartbeats: when another time than 0 to max_gap_ms has passed since this process's last sweep (0: it judges
-- nobody), only the time is noted; and leases that end more than furthest_ms ahead, because they were written before the
-- clock was set back, are brought back to that, or the tasks of a dead worker would wait for as long as the clock went back.
-- Only our own: Go writes and judges its leases by other clocks.
-- With `dead_worker` the leases of that worker (a child known to have died) are claimed before they expire.
local now = clock()
local claimed, tidied, cancels = {}, {}, {}
local has_lanes, has_waits = redis.call('EXISTS', keys.lanes()), redis.call('EXISTS', keys.waits(), keys.ended(), keys.orphans())

-- shorten_leases: bring our leases that end too far ahead back to the furthest end that a worker may write now.
local function shorten_leases()
  local furthest_end = whole(math.ceil((now + furthest_ms) / 1000))
  local ahead = redis.pcall('ZRANGEBYSCORE', lease, '(' .. furthest_end, '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
  for i = 1, ahead.err and 0 or #ahead, 2 do
    local id, lease_end = ahead[i], ahead[i + 1]
    local key = keys.task(id)
    local task = read_task(key, 'held', 'slots') or {}
    local its_owner = owner_in(task.held, lease_end)
    if its_owner then
      grow('ZADD', lease, furthest_end, id)
      redis.call('HSET', key, 'held', held_by(its_owner, furthest_end))
      if task.slots then keep_slots(queue_prefix, task.slots, id, furthest_end) end
    end
  end
end

local gap = now - since_ms
if dead_worker == '' and (gap < 0 or gap > max_gap_ms) then
  shorten_leases()
  return { now, 0, claimed, tidied, -1, cancels, has_lanes, has_waits }
end
expect(lease, 'zset')
expect(active, 'list')

-- Active without a lease (an eviction, a failover, a client that died between two commands): give it one that is not
-- ours, so that it is claimed after the slack like any other. The oldest are at the tail; only when there are more
-- active tasks than leases is it worth looking further.
local depth = redis.call('LLEN', active) > redis.call('ZCARD', lease) and 5000 or 20
for _, id in ipairs(redis.call('LRANGE', active, -depth, -1)) do
  if not redis.call('ZSCORE', lease, id) then grow('ZADD', lease, whole(math.floor(now / 1000)), id) end
end

-- is_over: whether a lease is to be claimed. Those that are not ours get a slack.
local function is_over(its_owner, lease_end)
  if dead_worker ~= '' then return its_owner and string.find(its_owner, dead_worker, 1, true) == 1 end
  return its_owner or tonumber(lease_end) * 1000 + foreign_slack_ms <= now
end

-- count_loss: how many leases of a task were lost so far. A claim that came to nothing (its reply was lost, or the recoverer
-- died) is no second loss.
local function count_loss(key, task, its_owner)
  local is_claim = its_owner and string.find(its_owner, ':recoverer:', 1, true)
  local losses = is_claim and tonumber(task.losses) or redis.pcall('HINCRBY', key, 'losses', 1)
  if type(losses) == 'number' then return losses end
  redis.call('HSET', key, 'losses', 1)
  return 1
end

-- loser: who lost the lease. A claim replaces the owner, so `lost_by` remembers it, with the loss that it belongs to.
local function loser(task, its_owner, losses)
  if not its_owner or not string.find(its_owner, ':recoverer:', 1, true) then return its_owner or '' end
  local loss, name = string.match(task.lost_by or '', '^(%d+) (.*)$')
  return tonumber(loss) == losses and name or ''
end

-- Leases that are not ours may still be within their slack: look past them, up to a bound.
local claim_end = whole(math.ceil((now + claim_ms) / 1000))
local horizon = dead_worker == '' and whole(math.floor(now / 1000)) or '+inf'
local page = redis.call('ZRANGEBYSCORE', lease, '-inf', horizon, 'WITHSCORES', 'LIMIT', 0, 2000)
for i = 1, #page, 2 do
  if #claimed / 4 >= limit then break end
  local id, lease_end = page[i], page[i + 1]
  local key = keys.task(id)
  local task = read_task(key, 'msg', 'held', 'cancel', 'unique_key', 'losses', 'lost_by')
  local its_owner = task and owner_in(task.held, lease_end)
  if is_over(its_owner, lease_end) then
    if not task or not task.msg then
      redis.call('ZREM', lease, id)
      redis.call('LREM', active, 0, id)
      if task then redis.call('DEL', key) end
      tidied[#tidied + 1] = id
    elseif not redis.call('LPOS', active, id) then
      redis.call('ZREM', lease, id)
      if its_owner then redis.call('HDEL', key, 'held') end
      tidied[#tidied + 1] = id
    else
      grow('ZADD', lease, claim_end, id)
      local losses = count_loss(key, task, its_owner)
      local lost_by = loser(task, its_owner, losses)
      redis.call('HSET', key, 'held', held_by(owner, claim_end), 'lost_by', losses .. ' ' .. lost_by)
      keep_lock(task.unique_key, id, claim_ms)
      for _, value in ipairs({ id, task.msg, losses, lost_by }) do claimed[#claimed + 1] = value end
      if task.cancel and mark_for(key, task.msg, task.cancel) then
        cancels[#cancels + 1] = id
        cancels[#cancels + 1] = task.cancel
      end
    end
  end
end
local coming = redis.call('ZRANGEBYSCORE', lease, '(' .. whole(math.floor(now / 1000)), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local _, next_end = unpack(coming, 1, 2)
return { now, 1, claimed, tidied, next_end and tonumber(next_end) * 1000 or -1, cancels, has_lanes, has_waits }

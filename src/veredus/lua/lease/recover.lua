-- recover: claim tasks whose worker has gone, for one recoverer, without ever taking them out of active.
-- KEYS  lease active
-- ARGV  task_prefix limit owner claim_ms foreign_slack_ms since_ms max_gap_ms furthest_ms dead_worker [now_ms]
-- RETURNS  {now_ms, 1 if it swept or 0 if it only noted the time, {id, message, leases lost so far, ...}, {tidied id, ...},
--   the instant in ms at which the next lease will expire, or -1, {claimed id, how to cancel it, ...},
--   1 if the queue has lanes or 0}
-- include: clock checks grow hold lanes limits marks
-- A claim re-arms the lease for a short while and makes the recoverer its owner; only retry or archive remove the task.
-- So a recoverer that dies loses nothing, and of several recoverers exactly one gets each task.
-- A server that stood still, or whose clock was set forward, makes living tasks look dead, because this sweep may run before
-- the next heartbeats: when another time than 0 to max_gap_ms has passed since this process's last sweep (0: it shall judge
-- nobody), only the time is noted; and leases that end more than furthest_ms ahead, because they were written before the
-- clock was set back, are brought back to that, or the tasks of a dead worker would wait for as long as the clock went back.
-- Only our own: Go writes and judges its leases by other clocks.
-- With `dead_worker` the leases of that worker (a child known to have died) are claimed before they expire.
local lease, active = unpack(KEYS)
local task_prefix, limit, owner, claim_ms, slack, since, max_gap, furthest, dead_worker = unpack(ARGV)
local now = clock(ARGV[10])
limit = tonumber(limit)
local claimed, tidied, cancels = {}, {}, {}
local has_lanes = redis.call('EXISTS', string.sub(task_prefix, 1, -3) .. 'lanes')
local gap = now - tonumber(since)
if dead_worker == '' and (gap < 0 or gap > tonumber(max_gap)) then
  local furthest_end = whole(math.ceil((now + tonumber(furthest)) / 1000))
  local ahead = redis.pcall('ZRANGEBYSCORE', lease, '(' .. furthest_end, '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
  for i = 1, ahead.err and 0 or #ahead, 2 do
    local key = task_prefix .. ahead[i]
    local fields = redis.pcall('HMGET', key, 'held', 'slots')
    if not fields.err and is_ours(fields[1], ahead[i + 1]) then
      grow('ZADD', lease, furthest_end, ahead[i])
      redis.call('HSET', key, 'held', string.sub(fields[1], 1, -#ahead[i + 1] - 1) .. furthest_end)
      if fields[2] then keep_slots(string.sub(task_prefix, 1, -3), fields[2], ahead[i], furthest_end) end
    end
  end
  return { now, 0, claimed, tidied, -1, cancels, has_lanes }
end
expect(lease, 'zset')
expect(active, 'list')

-- Active without a lease (an eviction, a failover, a client that died between two commands): give it one that is not
-- ours, so that it is claimed after the slack like any other. The oldest stand at the tail; only when there are more
-- active tasks than leases is it worth looking further.
local depth = redis.call('LLEN', active) > redis.call('ZCARD', lease) and 5000 or 20
for _, id in ipairs(redis.call('LRANGE', active, -depth, -1)) do
  if not redis.call('ZSCORE', lease, id) then grow('ZADD', lease, whole(math.floor(now / 1000)), id) end
end

local claim_end = whole(math.ceil((now + tonumber(claim_ms)) / 1000))
local function is_over(fields, lease_end)
  local ours = not fields.err and is_ours(fields[2], lease_end)
  if dead_worker ~= '' then
    return ours and string.sub(fields[2], 1, #dead_worker) == dead_worker
  end
  return ours or tonumber(lease_end) * 1000 + tonumber(slack) <= now
end

-- Leases that are not ours may still be within their slack: look past them, up to a bound.
local horizon = dead_worker == '' and whole(math.floor(now / 1000)) or '+inf'
local page = redis.call('ZRANGEBYSCORE', lease, '-inf', horizon, 'WITHSCORES', 'LIMIT', 0, 2000)
for i = 1, #page, 2 do
  if #claimed / 3 >= limit then break end
  local id, lease_end = page[i], page[i + 1]
  local key = task_prefix .. id
  local fields = redis.pcall('HMGET', key, 'msg', 'held', 'cancel', 'unique_key', 'losses')
  if is_over(fields, lease_end) then
    if fields.err or not fields[1] then
      redis.call('ZREM', lease, id)
      redis.call('LREM', active, 0, id)
      if not fields.err then redis.call('DEL', key) end
      tidied[#tidied + 1] = id
    elseif not redis.call('LPOS', active, id) then
      redis.call('ZREM', lease, id)
      if is_ours(fields[2], lease_end) then redis.call('HDEL', key, 'held') end
      tidied[#tidied + 1] = id
    else
      grow('ZADD', lease, claim_end, id)
      redis.call('HSET', key, 'held', held_by(owner, claim_end))
      keep_lock(fields[4], id, claim_ms)
      claimed[#claimed + 1] = id
      claimed[#claimed + 1] = fields[1]
      -- A claim that came to nothing (its answer was lost, or the recoverer) is no second loss.
      local is_claim = is_ours(fields[2], lease_end) and string.find(fields[2], ':recoverer:', 1, true)
      local losses = is_claim and tonumber(fields[5]) or redis.pcall('HINCRBY', key, 'losses', 1)
      if type(losses) ~= 'number' then
        losses = 1
        redis.call('HSET', key, 'losses', losses)
      end
      claimed[#claimed + 1] = losses
      if fields[3] and mark_for(key, fields[1], fields[3]) then
        cancels[#cancels + 1] = id
        cancels[#cancels + 1] = fields[3]
      end
    end
  end
end
local coming = redis.call('ZRANGEBYSCORE', lease, '(' .. whole(math.floor(now / 1000)), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return { now, 1, claimed, tidied, coming[2] and tonumber(coming[2]) * 1000 or -1, cancels, has_lanes }

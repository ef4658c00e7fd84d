-- sweep: what time has made of the sessions of some partitions: orphans, the expired, requests and binds that are overdue.
-- KEYS  partition
-- ARGV  channel limit late_mark extra nodes {node}* count {tag}* [now_ms]
-- RETURNS  per partition {{expired sid}*, {orphaned sid}*, {due sid.rid}*, flushed, dropped, left, {empty group}*}
-- include: chunks log mail erase binding leaving
-- At most `limit` of each kind per partition. The nodes are dead ones: their sessions are detached; `left` is 1 if they have
-- more. Overdue requests are only named: whoever swept gives them their terminal response, and the first one counts. What
-- is bound to a request that never came goes into the log as late. Groups that perhaps have no member here (`ge`) are named
-- if that is so: whoever swept forgets that they have members here.
local channel, limit, late_mark, extra, nodes = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local count = tonumber(ARGV[6 + nodes])
local now, now_us = moment(ARGV[7 + nodes + count])

local function detach_orphans(partition)
  local orphans, left = {}, 0
  for i = 6, 5 + nodes do
    local node = ARGV[i]
    for _, sid in ipairs(redis.call('SRANDMEMBER', partition .. 'n:' .. node, limit)) do
      local m = redis.call('HMGET', partition .. 's:' .. sid .. ':m', 'n', 'ttl')
      if m[1] == node then
        leave_node(sid, node, tonumber(m[2]), now)
        orphans[#orphans + 1] = sid
      else
        redis.call('SREM', partition .. 'n:' .. node, sid)
      end
    end
    if redis.call('EXISTS', partition .. 'n:' .. node) == 1 then left = 1 end
  end
  return orphans, left
end

local function overdue(index) return redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, limit) end

local function split(member) return string.match(member, '^(.*)%.(%d+)$') end

local function due_requests(partition)
  local due = {}
  for _, member in ipairs(overdue(partition .. 'dl')) do
    local sid, rid = split(member)
    local state = redis.call('HGET', partition .. 's:' .. sid .. ':r', rid)
    if state and string.sub(state, 1, 1) == 'A' then
      due[#due + 1] = member
    else
      redis.call('ZREM', partition .. 'dl', member)
    end
  end
  return due
end

-- empty_groups: 0 is the score of groups that somebody is about to join, which may take a while.
local function empty_groups(partition)
  local empty, rows = {}, redis.call('ZRANGEBYSCORE', partition .. 'ge', '-inf', now, 'WITHSCORES', 'LIMIT', 0, 100)
  for i = 1, #rows, 2 do
    local group = rows[i]
    if rows[i + 1] == '0' then
      redis.call('ZADD', partition .. 'ge', now + 60000, group)
    elseif redis.call('EXISTS', partition .. 'g:' .. group) == 1 then
      redis.call('ZREM', partition .. 'ge', group)
    else
      empty[#empty + 1] = group
    end
  end
  return empty
end

local function release_early(s, rid)
  local flushed = 0
  local befores, afters, dropped = release_held(s, rid, function(late) return late == 's' end)
  for _, items in ipairs({ befores, afters }) do
    for _, item in ipairs(items) do
      local size = #item[1] + 26
      if s.top - s.floor < s.quota + extra and s.bytes - s.bytes_floor + size <= s.quota_bytes + extra * 1024 then
        add(s, item[1] .. late_mark, item[2], now_us)
        flushed = flushed + 1
      else
        dropped = dropped + 1
      end
    end
  end
  redis.call('HDEL', s.base .. 'r', rid)
  return flushed, dropped
end

local replies = {}
for i = 1, count do
  local partition = partition_of(ARGV[6 + nodes + i])
  local orphans, left = detach_orphans(partition)
  local expired = overdue(partition .. 'x')
  for _, sid in ipairs(expired) do erase(sid, 'expired') end
  local due = due_requests(partition)
  local flushed, dropped = 0, 0
  for _, member in ipairs(overdue(partition .. 'bd')) do
    redis.call('ZREM', partition .. 'bd', member)
    local sid, rid = split(member)
    local s = look_up(sid, now)
    if s then
      local sent, lost = release_early(s, rid)
      flushed, dropped = flushed + sent, dropped + lost
    end
  end
  replies[i] = { expired, orphans, due, flushed, dropped, left, empty_groups(partition) }
end
save_all()
tell_nodes(channel)
return replies

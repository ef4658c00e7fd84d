-- sweep: do what has become due in some partitions: orphans, expired sessions, overdue requests and binds.
-- KEYS  sessions
-- ARGV  channel limit late_mark extra:number ROWS(nodes) node ROWS(tags) tag
-- RETURNS  per partition {{expired sid}*, {orphaned sid}*, {due sid.rid}*, flushed, dropped, left, {empty group}*}
-- NEEDS  binding erase leaving log request_records
-- At most `limit` of each kind per partition. The nodes are dead: their sessions are detached; `left` is 1 if they have
-- more. Overdue requests are only returned: the caller gives them their terminal response, and the first one counts. What
-- is bound to a request that never came goes into the log as late. Groups that have no member here any more are returned:
-- the caller removes this partition from their lists.

local function detach_orphans(partition)
  local orphans, left = {}, 0
  for i, node in nodes() do
    local attached = session_keys.attached(partition, node)
    for _, sid in ipairs(redis.call('SRANDMEMBER', attached, limit)) do
      local meta = session_keys.meta(session_keys.session_prefix(partition, sid))
      local current, ttl = unpack(redis.call('HMGET', meta, field.NODE, field.TTL))
      if current == node then
        leave_node(sid, node, tonumber(ttl))
        orphans[#orphans + 1] = sid
      else
        redis.call('SREM', attached, sid)
      end
    end
    if redis.call('EXISTS', attached) == 1 then left = 1 end
  end
  return orphans, left
end

local function overdue(index) return redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, limit) end

local function split(name) return string.match(name, '^(.*)%.(%d+)$') end

local function due_requests(partition)
  local due, deadlines = {}, session_keys.deadlines(partition)
  for _, name in ipairs(overdue(deadlines)) do
    local sid, rid = split(name)
    local requests = session_keys.requests(session_keys.session_prefix(partition, sid))
    if kind_of(redis.call('HGET', requests, rid)) == 'accepted' then
      due[#due + 1] = name
    else
      redis.call('ZREM', deadlines, name)
    end
  end
  return due
end

-- empty_groups: score 0 means that a session is about to join, which may take a while.
local function empty_groups(partition)
  local empty, emptied = {}, session_keys.emptied(partition)
  local found = redis.call('ZRANGEBYSCORE', emptied, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 100)
  for i = 1, #found, 2 do
    local group, score = found[i], found[i + 1]
    if score == '0' then
      redis.call('ZADD', emptied, now + 60000, group)
    elseif redis.call('EXISTS', session_keys.group(partition, group)) == 1 then
      redis.call('ZREM', emptied, group)
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
      local tail = item.tail .. late_mark
      local size = #tail + HEADER_BYTES
      if s.top - s.floor < s.quota + extra and s.bytes - s.bytes_floor + size <= s.quota_bytes + extra * 1024 then
        add(s, tail, item.expiry)
        flushed = flushed + 1
      else
        dropped = dropped + 1
      end
    end
  end
  redis.call('HDEL', session_keys.requests(s.base), rid)
  return flushed, dropped
end

local replies = {}
for i, tag in tags() do
  local partition = session_keys.prefix(tag)
  local orphans, left = detach_orphans(partition)
  local expired = overdue(session_keys.expiries(partition))
  for _, sid in ipairs(expired) do erase(sid, 'expired') end
  local due = due_requests(partition)
  local flushed, dropped, early = 0, 0, session_keys.early_binds(partition)
  for _, name in ipairs(overdue(early)) do
    redis.call('ZREM', early, name)
    local sid, rid = split(name)
    local s = look_up(sid)
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

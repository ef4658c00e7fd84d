-- post: put messages into the logs of all sessions of a user, or into the mailbox of a user who has none.
-- KEYS  partition
-- ARGV  channel dedupe_ms mail_entries mail_bytes count {tag user expiry key policy wait tail}* [now_ms]
-- RETURNS  per row a flat list {status seq sid}*: one per session, or one without sid: waiting, full, gone or duplicate
-- include: clock chunks log mail erase pushing
-- With `wait`, it is kept until one session has acknowledged it, whatever sessions end before: see include/mail.lua.
-- Mail is {until, expiry, bytes so far} and the tail; what nobody fetched in time goes when room is needed, and the whole
-- mailbox when its last message has waited long enough.
local channel, dedupe_ms, mail_entries, mail_bytes, count =
  ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local now, now_us = moment(ARGV[6 + count * 7])

local function keep(box, tail, expiry, ends)
  local first
  while true do
    first = redis.call('LINDEX', box, 0)
    if not first or header(first) > now then break end
    redis.call('LPOP', box)
  end
  local used = 0
  if first then
    local _, _, bytes_first = header(first)
    local _, _, bytes = header(redis.call('LINDEX', box, -1))
    used = bytes - bytes_first + #first
  end
  if redis.call('LLEN', box) >= mail_entries or used + #tail + 24 > mail_bytes then return 'full' end
  mail().put(box, tail, expiry, ends)
  return 'waiting'
end

local sids = {}
for i = 1, count do
  local tag, user = unpack(ARGV, i * 7 - 1, i * 7)
  sids[i] = redis.call('ZRANGE', partition_of(tag) .. 'u:' .. user, 0, -1)
  for _, sid in ipairs(sids[i]) do check_list(look_up(sid, now)) end
  redis.call('LLEN', partition_of(tag) .. 'mail:' .. user)
end

local replies = {}
for i = 1, count do
  local tag, user, expiry, key, policy, wait, tail = unpack(ARGV, i * 7 - 1, i * 7 + 5)
  local partition = partition_of(tag)
  local name = partition .. 'd:' .. #user .. ':' .. user .. ':' .. key
  local before = key ~= '' and redis.call('GET', name)
  local reply, at, ends = {}, expiry == '' and 0 or instant(expiry, now), now + tonumber(wait)
  if at > 0 and at < ends then ends = at end
  if before then
    local seq, sid = string.match(before, '^(%d+) (.*)$')
    reply = { 'duplicate', tonumber(seq), sid }
  else
    for _, sid in ipairs(sids[i]) do
      local s = look_up(sid, now)
      if s then
        local status, seq = push(s, tail, expiry, '', policy, dedupe_ms, now, now_us)
        if status == 'queued' and tonumber(wait) > 0 then
          mail().note(s, string.format('%.0f.%d', now_us, i), seq, ends)
        end
        if status == 'queued' and key ~= '' then
          redis.call('SET', name, string.format('%.0f %s', seq, sid), 'PX', dedupe_ms)
        end
        for _, part in ipairs({ status, seq, sid }) do reply[#reply + 1] = part end
      end
    end
    if #reply == 0 then
      local status = 'gone'
      if tonumber(wait) > 0 then
        status = keep(partition .. 'mail:' .. user, tail, at, ends)
        if status == 'waiting' and key ~= '' then redis.call('SET', name, '0 ', 'PX', dedupe_ms) end
      end
      reply = { status, 0, '' }
    end
  end
  replies[i] = reply
end
save_all()
tell_nodes(channel)
return replies

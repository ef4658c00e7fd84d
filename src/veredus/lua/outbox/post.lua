-- post: put messages into the logs of all sessions of a user, or into the mailbox of a user who has none.
-- KEYS  sessions
-- ARGV  channel dedupe_ms mail_entries:number mail_bytes:number
--       ROWS tag user expiry dedupe_name policy wait_ms:number tail
-- RETURNS  per row a flat list {status seq sid}*: one per session, or one without sid: waiting, full, gone or duplicate
-- NEEDS  clock log mail pushing
-- With `wait_ms`, it is kept until one session has acknowledged it, whichever sessions end before: see include/mail.lua.
-- A letter in a mailbox is {until, expiry, bytes so far} and the message. Letters that were not fetched in time are deleted
-- when room is needed, and the whole mailbox when its last message has waited long enough.
-- `dedupe_name` is the key that says that this message was pushed, empty for none.

-- keep: put one message into a mailbox, if there is room.
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
  if redis.call('LLEN', box) >= mail_entries or used + #tail + HEADER_BYTES > mail_bytes then return 'full' end
  mail().put(box, tail, expiry, ends)
  return 'waiting'
end

local sids = {}
for i, tag, user in rows() do
  local partition = session_keys.prefix(tag)
  sids[i] = redis.call('ZRANGE', session_keys.user(partition, user), 0, -1)
  for _, sid in ipairs(sids[i]) do check_list(look_up(sid)) end
  redis.call('LLEN', session_keys.mailbox(partition, user))
end

local replies = {}
for i, tag, user, expiry, dedupe_name, policy, wait_ms, tail in rows() do
  local before = dedupe_name ~= '' and redis.call('GET', dedupe_name)
  local reply, at, ends = {}, expiry_at(expiry), now + wait_ms
  if at > 0 and at < ends then ends = at end
  if before then
    local seq, sid = string.match(before, '^(%d+) (.*)$')
    reply = { 'duplicate', tonumber(seq), sid }
  else
    for _, sid in ipairs(sids[i]) do
      local s = look_up(sid)
      if s then
        local status, seq = push(s, tail, expiry, '', policy)
        if status == 'queued' and wait_ms > 0 then mail().note(s, whole(now_us) .. '.' .. i, seq, ends) end
        if status == 'queued' and dedupe_name ~= '' then
          redis.call('SET', dedupe_name, whole(seq) .. ' ' .. sid, 'PX', dedupe_ms)
        end
        for _, part in ipairs({ status, seq, sid }) do reply[#reply + 1] = part end
      end
    end
    if #reply == 0 then
      local status = 'gone'
      if wait_ms > 0 then
        status = keep(session_keys.mailbox(session_keys.prefix(tag), user), tail, at, ends)
        if status == 'waiting' and dedupe_name ~= '' then redis.call('SET', dedupe_name, '0 ', 'PX', dedupe_ms) end
      end
      reply = { status, 0, '' }
    end
  end
  replies[i] = reply
end
save_all()
tell_nodes(channel)
return replies

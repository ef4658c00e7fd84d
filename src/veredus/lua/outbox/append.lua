-- append: number messages and put each into the log of its session.
-- KEYS  sessions
-- ARGV  channel dedupe_ms ROWS sid expiry dedupe_key rid number policy tail
-- RETURNS  per row {status, seq}: queued, duplicate (seq of the first, if it is known), full or gone
-- NEEDS  log notified pushing row_sessions
-- With `rid` it is a notify of that request's handler, and its `number` is its key.
-- On one server the rows may be of any partition; the key only says where to go on a cluster.
look_up_rows()
for i, sid, rid in rows() do
  local s = look_up(sid)
  if s and rid ~= '' then
    redis.call('HLEN', session_keys.told(s.base))
    redis.call('HLEN', session_keys.requests(s.base))
  end
end

local replies = {}
for i, sid, expiry, dedupe_key, rid, number, policy, tail in rows() do
  local s = look_up(sid)
  if rid ~= '' then
    replies[i] = { push_once(s, rid, number, tail, expiry, policy) }
  else
    replies[i] = { push(s, tail, expiry, dedupe_key, policy) }
  end
end
save_all()
tell_nodes(channel)
return replies

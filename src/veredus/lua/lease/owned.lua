-- owned: the leases that one worker holds in a queue, the first to expire first.
-- KEYS  lease
-- ARGV  task_prefix worker limit [now_ms]
-- RETURNS  {now_ms, {id, owner, message, ...}}
-- include: clock hold
-- `worker` is how the owners of its tasks begin. A lease that somebody else wrote since then is not its own any more.
local now = clock(ARGV[4])
local worker = ARGV[2]
local rows = {}
local page = redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[3]) - 1, 'WITHSCORES')
for i = 1, #page, 2 do
  local id, lease_end = page[i], page[i + 1]
  local fields = redis.pcall('HMGET', ARGV[1] .. id, 'held', 'msg')
  if not fields.err and fields[2] and is_ours(fields[1], lease_end) and string.sub(fields[1], 1, #worker) == worker then
    for _, value in ipairs({ id, string.sub(fields[1], 1, -#lease_end - 2), fields[2] }) do rows[#rows + 1] = value end
  end
end
return { now, rows }

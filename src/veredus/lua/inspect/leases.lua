-- leases: who holds which task of a queue and until when, the first to expire first.
-- KEYS  lease
-- ARGV  task_prefix start size [now_ms]
-- RETURNS  {now_ms, {id, lease end in s, held, message, ...}}
-- include: clock
local now = clock(ARGV[4])
local page = redis.call('ZRANGE', KEYS[1], ARGV[2], tonumber(ARGV[2]) + tonumber(ARGV[3]) - 1, 'WITHSCORES')
local rows = {}
for i = 1, #page, 2 do
  local fields = redis.pcall('HMGET', ARGV[1] .. page[i], 'held', 'msg')
  if fields.err then fields = { false, false } end
  for _, value in ipairs({ page[i], page[i + 1], fields[1], fields[2] }) do rows[#rows + 1] = value end
end
return { now, rows }

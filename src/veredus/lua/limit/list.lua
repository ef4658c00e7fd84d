-- list: the limits of a queue, and how much of each is taken.
-- KEYS  limits limited
-- ARGV  queue_prefix most [now_ms]
-- RETURNS  {scope, its limit "at_once starts per_ms" (empty: none any more), running, begun within the period, waiting, ...}
-- include: clock checks lanes limits
-- First every limit that was declared (those per key without numbers of their own), then, at most so many, the keys for
-- which somebody waits.
local limits, limited = unpack(KEYS)
local queue_prefix, most = ARGV[1], tonumber(ARGV[2])
local now = clock(ARGV[3])

local rows, listed = {}, {}
local function add(scope, limit)
  if listed[scope] then return end
  listed[scope] = true
  local running = redis.call('ZCOUNT', queue_prefix .. 'slots:' .. scope, '(' .. whole(math.floor(now / 1000)), '+inf')
  local begun = 0
  if limit and limit.count > 0 then
    for _, at in ipairs(redis.call('LRANGE', queue_prefix .. 'starts:' .. scope, 0, 9999)) do
      if tonumber(at) + limit.per > now then begun = begun + 1 end
    end
  end
  local numbers = limit and table.concat({ limit.most, limit.count, limit.per }, ' ') or ''
  local waiting = redis.call('ZCARD', queue_prefix .. 'waiting:' .. scope)
  for _, value in ipairs({ scope, numbers, running, begun, waiting }) do rows[#rows + 1] = value end
end
local declared = redis.call('HGETALL', limits)
for i = 1, #declared, 2 do add(declared[i], limit_from(declared[i + 1])) end
for _, scope in ipairs(redis.call('ZRANGE', limited, 0, most - 1)) do add(scope, limit_of(queue_prefix, scope)) end
return rows

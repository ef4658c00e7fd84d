-- list: the limits of a queue, and how much of each is taken.
-- KEYS  limits limited
-- ARGV  queue_prefix most:number
-- RETURNS  {scope, its limit "at_once starts per_ms" (empty: none any more), running, begun within the period, waiting, ...}
-- NEEDS  clock limits
-- First every limit that was declared (those per key without numbers of their own), then up to `most` of the keys that tasks
-- wait for.
local now = clock()

local reply, listed = {}, {}
local function add(scope, limit)
  if listed[scope] then return end
  listed[scope] = true
  local running = redis.call('ZCOUNT', keys.slots(scope), '(' .. whole(math.floor(now / 1000)), '+inf')
  local begun = 0
  if limit and limit.count > 0 then
    for _, at in ipairs(redis.call('LRANGE', keys.starts(scope), 0, 9999)) do
      if tonumber(at) + limit.per > now then begun = begun + 1 end
    end
  end
  local numbers = limit and table.concat({ limit.most, limit.count, limit.per }, ' ') or ''
  local waiting = redis.call('ZCARD', keys.waiting(scope))
  for _, value in ipairs({ scope, numbers, running, begun, waiting }) do reply[#reply + 1] = value end
end
local declared = redis.call('HGETALL', limits)
for i = 1, #declared, 2 do add(declared[i], limit_from(declared[i + 1])) end
for _, scope in ipairs(redis.call('ZRANGE', limited, 0, most - 1)) do add(scope, limit_of(queue_prefix, scope)) end
return reply

-- look: whether workers are subscribed to their channels. All are listed for the two workers that look for dead ones.
-- KEYS  servers checkers judged
-- ARGV  worker_id may_check:flag
-- RETURNS  {now_ms, subscribers of this worker's channel (-1: this user may not ask), leases that were taken from it
--   because it was found dead, {worker, its last sign of life, subscribers of its channel, ...}}
-- NEEDS  clock grow
-- The sign of life is the second at which a worker's record expires: each heartbeat sets it. A worker that looks for dead ones
-- does so until it has not asked for three seconds; then another one may. Subscribers are counted by this node alone, so
-- workers subscribe on the node that has `servers`.
local now = clock()
local taken = redis.pcall('HGET', judged, worker_id)
local channels, records = { keys.alive(worker_id) }, {}
if may_check then
  redis.call('ZREMRANGEBYSCORE', checkers, '-inf', now)
  if redis.call('ZSCORE', checkers, worker_id) or redis.call('ZCARD', checkers) < 2 then
    grow('ZADD', checkers, string.format('%.0f', now + 3000), worker_id)
    redis.call('PEXPIRE', checkers, 60000)
    local oldest = whole(math.floor(now / 1000) - 300)
    local page = redis.call('ZREVRANGEBYSCORE', servers, '+inf', oldest, 'WITHSCORES', 'LIMIT', 0, 1000)
    for i = 1, #page, 2 do
      local name, life = page[i], page[i + 1]
      local worker = string.match(name, '([^:{}]+)}$')
      if worker then
        records[#records + 1] = { worker, life }
        channels[#channels + 1] = keys.alive(worker)
      end
    end
  end
end
local counts = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels, 1, #channels))
if counts.err then return { now, -1, tonumber(taken) or 0, {} } end
local found = {}
for i, record in ipairs(records) do
  local worker, life = unpack(record, 1, 2)
  for _, value in ipairs({ worker, life, counts[2 * i + 2] }) do found[#found + 1] = value end
end
return { now, counts[2], tonumber(taken) or 0, found }

-- look: whether a worker is subscribed to its channel; for the two workers that look for dead ones, also who is to be looked for.
-- KEYS  servers checkers judged
-- ARGV  worker_id may_check:flag
-- RETURNS  {now_ms, subscribers of this worker's channel (-1: this user may not ask), leases that were taken from it
--   because it was found dead, {record of a worker, the second at which it expires, ...}}
-- NEEDS  clock grow
-- Each heartbeat sets the second at which a record expires. A worker that looks for dead ones does so until it has not asked for
-- three seconds; then another one may. A node counts only its own subscribers, so workers subscribe where `servers` is.
local now = clock()
local taken = redis.pcall('HGET', judged, worker_id)
local records = {}
if may_check then
  redis.call('ZREMRANGEBYSCORE', checkers, '-inf', now)
  redis.call('ZREMRANGEBYSCORE', checkers, string.format('(%.0f', now + 3000), '+inf') -- the server's clock was set back
  if redis.call('ZSCORE', checkers, worker_id) or redis.call('ZCARD', checkers) < 2 then
    grow('ZADD', checkers, string.format('%.0f', now + 3000), worker_id)
    redis.call('PEXPIRE', checkers, 60000)
    local oldest = whole(math.floor(now / 1000) - 300)
    records = redis.call('ZREVRANGEBYSCORE', servers, '+inf', oldest, 'WITHSCORES', 'LIMIT', 0, 1000)
  end
end
local counts = redis.pcall('PUBSUB', 'NUMSUB', keys.alive(worker_id))
if counts.err then return { now, -1, tonumber(taken) or 0, {} } end
local _, subscribers = unpack(counts, 1, 2)
return { now, subscribers, tonumber(taken) or 0, records }

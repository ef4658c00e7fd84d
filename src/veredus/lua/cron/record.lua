-- record: write enqueued ticks into the history of a schedule, which keeps the newest ones.
-- KEYS  history
-- ARGV  most ttl count {second event}*
-- RETURNS  how many events the history has
local history = KEYS[1]
local most, ttl, count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
for i = 1, count do redis.call('ZADD', history, ARGV[2 + i * 2], ARGV[3 + i * 2]) end
redis.call('ZREMRANGEBYRANK', history, 0, -most - 1)
redis.call('EXPIRE', history, ttl)
return redis.call('ZCARD', history)

-- record: write enqueued ticks into the history of a schedule, which keeps the newest ones.
-- KEYS  history
-- ARGV  most:number ttl ROWS second event
-- RETURNS  how many events the history has
-- NEEDS  nothing
for i, second, event in rows() do redis.call('ZADD', history, second, event) end
redis.call('ZREMRANGEBYRANK', history, 0, -most - 1)
redis.call('EXPIRE', history, ttl)
return redis.call('ZCARD', history)

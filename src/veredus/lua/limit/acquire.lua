-- acquire: take one of the tokens of a semaphore, as Asynq's x/rate does: until the deadline of the task that takes it.
-- KEYS  semaphore
-- ARGV  most task_id deadline [now_ms]
-- RETURNS  1 if it was taken, 0 if all are
-- include: clock checks
local semaphore, most, id, deadline = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local now = clock(ARGV[4])
expect(semaphore, 'zset')
redis.call('ZREMRANGEBYSCORE', semaphore, '-inf', whole(math.floor(now / 1000) - 1))
if redis.call('ZCARD', semaphore) >= most then return 0 end
redis.call('ZADD', semaphore, deadline, id)
return 1

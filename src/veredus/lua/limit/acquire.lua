-- acquire: take one of the tokens of a semaphore, as Asynq's x/rate does: until the deadline of the task that takes it.
-- KEYS  semaphore
-- ARGV  most:number task_id deadline
-- RETURNS  1 if it was taken, 0 if all are
-- NEEDS  clock checks
-- A task that has a token keeps that one and takes no other: it may ask again because the reply was lost.
local now = clock()
expect(semaphore, 'zset')
redis.call('ZREMRANGEBYSCORE', semaphore, '-inf', whole(math.floor(now / 1000) - 1))
if redis.call('ZCARD', semaphore) >= most and not redis.call('ZSCORE', semaphore, task_id) then return 0 end
redis.call('ZADD', semaphore, deadline, task_id)
return 1

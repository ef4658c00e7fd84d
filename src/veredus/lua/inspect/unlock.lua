-- unlock: delete a unique lock whose task is gone or names another lock.
-- KEYS  pending active lease scheduled retry archived completed due groups aggregation_sets
-- ARGV  queue_prefix lock holder apply [now_ms]
-- RETURNS  1 if it is (or was) such a lock, else 0
-- include: clock checks places locks
local lock, holder, apply = ARGV[2], ARGV[3], ARGV[4] == '1'
if redis.pcall('GET', lock) ~= holder then return 0 end
local key = task_prefix .. holder
local fields = redis.pcall('HMGET', key, 'unique_key', 'msg')
if not fields.err and fields[2] and lock_of(key, fields[1], true) == lock then return 0 end
if apply then redis.call('DEL', lock) end
return 1

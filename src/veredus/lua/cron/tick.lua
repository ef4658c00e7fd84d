-- tick: move a schedule from one tick to the next and enqueue its task, in one step, so that no tick can fire twice.
-- KEYS  state MORE insert_keys
-- ARGV  at tick ttl_ms ROWS(insert_args) value
-- RETURNS  code, the second of the schedule's position now (empty: unknown), now_ms; the code is that of the insert (1 enqueued, 0 the id exists, -1 the unique lock is held), -2 it had another position, -3 too early, -7 it is paused: the tick passed
-- NEEDS  clock
-- `insert` is the script that any client runs to enqueue or schedule a task: the store puts it in front of this one as a
-- function, so that a tick's task is made exactly like any other.
local now = clock()
local position = redis.call('HGET', state, 'at') or ''
if position ~= at then return { -2, position, now } end
if tonumber(tick) * 1000 > now then return { -3, position, now } end
if redis.call('HEXISTS', state, 'paused') == 1 then -- its ticks pass, and are not caught up later
  redis.call('HSET', state, 'at', tick)
  redis.call('PEXPIRE', state, ttl_ms)
  return { -7, tick, now }
end

local args = {}
for i, value in insert_args() do args[i] = value end
args[#args + 1] = given_now_ms
local codes = insert(insert_keys, args) -- it checks before it writes; if it fails, the schedule has not moved
redis.call('HSET', state, 'at', tick, 'fired', tick)
redis.call('PEXPIRE', state, ttl_ms)
return { codes[1], tick, now }

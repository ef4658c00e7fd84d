-- tick: move a schedule from one tick to the next and enqueue its task, in one step, so that no tick can fire twice.
-- KEYS  state {key of the insert}*
-- ARGV  at tick ttl_ms count {argument of the insert}* [now_ms]
-- RETURNS  code, the second the schedule stands at now (empty: unknown), now_ms; the code is that of the insert (1 enqueued, 0 the id exists, -1 the unique lock is held), -2 it stood elsewhere, -3 too early
-- include: clock
-- `insert` is the script that any client runs to enqueue or schedule a task: the store puts it in front of this one as a
-- function, so that a tick's task is made exactly like any other.
local state = KEYS[1]
local at, tick, ttl_ms, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local given = ARGV[5 + count]
local now = clock(given)

local stands = redis.call('HGET', state, 'at') or ''
if stands ~= at then return { -2, stands, now } end
if tonumber(tick) * 1000 > now then return { -3, stands, now } end

local keys, args = {}, {}
for i = 2, #KEYS do keys[i - 1] = KEYS[i] end
for i = 1, count do args[i] = ARGV[4 + i] end
args[count + 1] = given
local codes = insert(keys, args) -- it checks before it writes; if it fails, the schedule has not moved
redis.call('HSET', state, 'at', tick, 'fired', tick)
redis.call('PEXPIRE', state, ttl_ms)
return { codes[1], tick, now }

-- refuse: take back the record of a request that was accepted but could not be enqueued: it counts as never received.
-- KEYS  sessions
-- ARGV  sid rid generation arrival hold_ms:number
-- RETURNS  refused, answered (it has been answered since) or gone
-- NEEDS  binding log request_records
-- Only the record of this arrival is taken back. What is bound to the request waits again for one with its number.
local s = look_up(sid)
if not s then return 'gone' end
local requests, deadlines = session_keys.requests(s.base), session_keys.deadlines(s.partition)
local record = redis.call('HGET', requests, rid)
if is_answered(s, rid, record) then return 'answered' end
if kind_of(record) ~= 'accepted' or not is_marked(record, arrival_mark(generation, arrival)) then return 'refused' end
redis.call('ZCARD', deadlines)
redis.call('ZCARD', session_keys.early_binds(s.partition))
local held = held_count(s, rid)

redis.call('HDEL', requests, rid)
redis.call('ZREM', deadlines, request_name(sid, rid))
redis.call('HINCRBY', session_keys.meta(s.base), field.OPEN_REQUESTS, -1)
if held > 0 then wait_for_request(s, rid, now + hold_ms) end
return 'refused'

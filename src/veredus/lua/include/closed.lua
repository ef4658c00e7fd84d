-- NEEDS  nothing

-- is_closed: whether the queue takes no new tasks. Only Veredus asks: a Go client goes on sending.
local function is_closed(queue_prefix) return redis.call('EXISTS', keys.closed()) == 1 end

-- closed_mark: the key that is there while the queue takes no new tasks.
local function closed_mark(task_prefix) return string.sub(task_prefix, 1, -3) .. 'closed' end

-- is_closed: whether the queue takes no new tasks. Only Veredus asks: a Go client goes on sending.
local function is_closed(task_prefix) return redis.call('EXISTS', closed_mark(task_prefix)) == 1 end

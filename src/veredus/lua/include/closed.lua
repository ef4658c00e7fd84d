-- is_closed: whether the queue takes no new tasks. Only Veredus asks: a Go client goes on sending.
local function is_closed(task_prefix)
  return redis.call('EXISTS', string.sub(task_prefix, 1, -3) .. 'closed') == 1
end

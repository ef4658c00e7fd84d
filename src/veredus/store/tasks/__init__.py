"""Tasks in Redis: enqueue, dequeue, settle, schedule, group, limit."""

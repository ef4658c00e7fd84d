-- join: keep the outcomes of children; a parent that has all of a fan-out and waits for it is the next to run.
-- KEYS  pending scheduled due waits
-- ARGV  queue_prefix ROWS task_id mark name position:number outcome
-- RETURNS  number of parents that were called back
-- NEEDS  checks joining
expect(pending, 'list')
expect(scheduled, 'zset')
expect(due, 'zset')
expect(waits, 'zset')
local parents = {}
for _, task_id, mark, name, position, outcome in rows() do
  keep_outcome(queue_prefix, parents, task_id, mark, name, position, outcome)
end
return call_parents(queue_prefix, parents)

-- leave: remove the record of a worker process that stops.
-- KEYS  server workers types details [servers all_workers]
-- ARGV
-- RETURNS  number of keys deleted
-- NEEDS  checks
if servers then
  expect(servers, 'zset')
  expect(all_workers, 'zset')
  redis.call('ZREM', servers, server)
  redis.call('ZREM', all_workers, workers)
end
return redis.call('DEL', server, workers, types, details)

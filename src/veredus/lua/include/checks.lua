-- expect: stop before the first write when a key has a wrong type, because a later error would not undo the writes.
-- Asking for the size is the cheapest command that refuses a wrong type.
local SIZE = { list = 'LLEN', zset = 'ZCARD', set = 'SCARD' }
local function expect(key, kind) redis.call(SIZE[kind], key) end

-- NEEDS  nothing

-- expect: stop before the first write when a key has a wrong type, because a later error would not undo the writes.
-- Asking for the size is the cheapest command that refuses a wrong type.
local SIZE = { list = 'LLEN', zset = 'ZCARD', set = 'SCARD', hash = 'HLEN' }
local function expect(key, kind) redis.call(SIZE[kind], key) end

-- expect_ttl: stop before the first write when a lock would get a lifetime that Redis refuses: whole seconds from 1 on.
local function expect_ttl(lock, ttl)
  local seconds = tonumber(ttl)
  if lock ~= '' and not (seconds and seconds >= 1 and seconds <= 1e11 and seconds % 1 == 0) then
    error('a unique lock needs a ttl of whole seconds from 1 on')
  end
end

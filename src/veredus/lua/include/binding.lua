-- NEEDS  clock request_records

-- is_answered: whether a request has its response: the record says so, or the client has acknowledged it.
local function is_answered(s, rid, record)
  if record then return kind_of(record) == 'answered' end
  return is_acknowledged(s, rid)
end

-- arrival_mark: what the record of an accepted request says about the frame that brought it; nothing for arrival 0.
local function arrival_mark(generation, arrival)
  return arrival == '0' and '' or ':' .. generation .. ':' .. arrival
end

-- is_marked: whether the record was made for the frame with this mark.
local function is_marked(record, mark) return mark ~= '' and string.sub(record, -#mark) == mark end

-- pack_held: a message that is bound to a response, as it is stored: two flags, the expiry, the message.
local function pack_held(late, on_fail, expiry, tail) return struct.pack('>c1c1I8', late, on_fail, expiry) .. tail end

-- release_held: remove what is bound to a request. `wanted` decides about each item by its two flags (late, on_fail).
-- Returns the wanted items before and after the response as {tail, expiry}, and the number of the others.
local function release_held(s, rid, wanted)
  local dropped, count, bytes = 0, 0, 0
  local function release(list)
    local kept = {}
    for _, item in ipairs(redis.call('LRANGE', list, 0, -1)) do
      local late, on_fail, expiry, start = struct.unpack('>c1c1I8', item)
      local tail = string.sub(item, start)
      count, bytes = count + 1, bytes + #tail
      if wanted(late, on_fail) then
        kept[#kept + 1] = { tail = tail, expiry = expiry }
      else
        dropped = dropped + 1
      end
    end
    redis.call('DEL', list)
    return kept
  end
  local befores, afters = release(session_keys.befores(s.base, rid)), release(session_keys.afters(s.base, rid))
  if count > 0 then
    redis.call('HINCRBY', session_keys.meta(s.base), field.HELD, -count)
    redis.call('HINCRBY', session_keys.meta(s.base), field.HELD_BYTES, -bytes)
  end
  return befores, afters, dropped
end

-- held_count: how many messages are bound to a request.
local function held_count(s, rid)
  return redis.call('LLEN', session_keys.befores(s.base, rid)) + redis.call('LLEN', session_keys.afters(s.base, rid))
end

-- wait_for_request: what is bound to a request that has not arrived waits until then.
local function wait_for_request(s, rid, ends)
  redis.call('HSET', session_keys.requests(s.base), rid, 'B:' .. whole(ends))
  redis.call('ZADD', session_keys.early_binds(s.partition), ends, request_name(s.sid, rid))
end

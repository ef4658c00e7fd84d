-- NEEDS  nothing

-- The record of a request: `A:<deadline ms>[:<generation>:<arrival>]`, `D:<seq of the answer>` or `B:<ms>`.
local KINDS = { A = 'accepted', D = 'answered', B = 'early' }

-- kind_of: accepted, answered, or early: something is bound to a request that has not arrived. Nil without a record.
local function kind_of(record) return record and KINDS[string.sub(record, 1, 1)] end

-- is_acknowledged: whether the client has seen the response to a request that has no record.
local function is_acknowledged(s, rid)
  return tonumber(rid) <= tonumber(redis.call('HGET', session_keys.meta(s.base), field.REQUEST_FLOOR) or 0)
end

-- request_name: how the indexes of a partition name a request.
local function request_name(sid, rid) return sid .. '.' .. rid end

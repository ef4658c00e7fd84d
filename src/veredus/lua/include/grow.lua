-- NEEDS  nothing

-- grow: a write that needs memory, where it may be the first of a script that must also work on a full server. There such a
-- write is refused only until the script has written something; to delete a key that does not exist counts as writing.
local function grow(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  redis.call('DEL', key .. ':absent')
  return redis.call(command, key, ...)
end

-- may_grow: the writes that follow are not refused on a full server. For scripts that let work end there, whatever they write.
local function may_grow(key) redis.call('DEL', key .. ':absent') end

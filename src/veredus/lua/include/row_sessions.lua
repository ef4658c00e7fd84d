-- NEEDS  log

-- look_up_rows: read the sessions of all rows before the first write. The list of a single one is written first anyway.
local function look_up_rows()
  for i, sid in rows() do
    local s = look_up(sid)
    if rows_count > 1 then check_list(s) end
  end
end

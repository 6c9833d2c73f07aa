-- Twin of several.py, for the limits of one record: from record, limits and what was read of the first of them (see
-- redis.lua) to `new`, the record to keep, and `fits`.  A piece of text, not a function: to make one costs as much as
-- to decide a limit.

local state, new, fits, then_from = record, nil, nil, nil
-- include decide-first
if at > 0 then
  local allowed, after, before = fits, new, record
  if not fits and new ~= record then -- mended
    before = new .. string.sub(record, then_from)
  end
  repeat
    local from, state = then_from, record
    at, kind, cost, a, b, c, d, e = read(limits, NUMBERS, at)
    -- include decide
    if fits then
      after = allowed and after .. new
    else
      allowed = false
      if new ~= record then
        before = string.sub(before, 1, from - 1) .. new .. string.sub(before, then_from)
      end
    end
  until at < 0
  new, fits = allowed and after or before, allowed
end

-- Twin of several.py, for the limits of one record: from record, kinds, limits and cost (see redis.lua) to `new`, the
-- record to keep, and `allowed`.  A piece of text, not a function: to make one costs as much as to decide a limit.

local after, before, allowed = '', record, true
local index, from, at = 1, 1, 1
local kind, new, fits, then_from, then_at
repeat
  if index <= #kinds then -- the last kind is that of all that follow
    kind = #kinds == 1 and kinds or string.sub(kinds, index, index)
  end
  local state, limit = record, limits
  -- include decide
  if fits then
    after = index == 1 and new or after .. new
  else
    allowed = false
    if new ~= record then -- mended
      before = string.sub(before, 1, from - 1) .. new .. string.sub(before, then_from)
    end
  end
  index, from, at = index + 1, then_from, then_at
until at > #limits
new = allowed and after or before

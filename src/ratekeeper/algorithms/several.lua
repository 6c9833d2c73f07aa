-- Twin of several.py, for the limits of one record: from record, kinds, limits and cost (see redis.lua) to `new`, the
-- record to keep, and `allowed`.  A piece of text, not a function: to make one costs as much as to decide a limit.

local after, before, allowed = '', record, true
local index, from, at = 1, 1, 1
repeat
  if index <= #kinds then -- the last kind is that of all that follow
    local kind = #kinds == 1 and kinds or string.sub(kinds, index, index)
    if kind ~= made_kind then
      made_kind, made = kind, rule(kind)
    end
  end
  local new, fits, next_from, next_at = made(record, now, limits, cost, from, at)
  if fits then
    after = index == 1 and new or after .. new
  else
    allowed = false
    if new ~= record then -- mended
      before = string.sub(before, 1, from - 1) .. new .. string.sub(before, next_from)
    end
  end
  index, from, at = index + 1, next_from, next_at
until at > #limits
local new = allowed and after or before

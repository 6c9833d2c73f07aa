-- Twin of leaky_bucket.py: the same names in the same order, no redis.call, whole numbers below 2^53.
-- Numbers in two digits, state and limit as in gcra.lua; so are refund and debit.

local MARK = 4503599627370496 -- 2^52 microseconds: added to the instant of a state in debt
local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false

local function decide(state, from, now, cost, drain, unit, rests, full, slack)
  local full_rest = rests % 67108864
  local unit_rest = (rests - full_rest) / 67108864
  local before, before_rest, in_debt = 0, 0, false
  if state ~= '' then
    local empty_at, empty_at_rest = unpack('>I8I4', state, from)
    if empty_at_rest >= drain then
      empty_at_rest = drain - 1
    end
    if empty_at >= MARK then
      empty_at, in_debt = empty_at - MARK, true
    end
    if empty_at >= now then
      before, before_rest = empty_at - now, empty_at_rest
    end
  end
  local ticks = before_rest + cost * unit_rest
  local rest = ticks % drain
  local queued = before + cost * unit + (ticks - rest) / drain
  if queued > full or queued == full and rest > full_rest then
    if not in_debt and (before > full + slack or before == full + slack and before_rest > full_rest) then
      -- the clock stepped back far, or the limit was changed
      state, ahead = pack('>I8I4', now + full + slack, full_rest), true
    end
    return state, false, from + 12
  end
  return pack('>I8I4', now + queued, rest), true, from + 12
end

return decide

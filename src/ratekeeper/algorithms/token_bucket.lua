-- Twin of token_bucket.py: the same names in the same order, no redis.call, whole numbers below 2^53.
-- Numbers in two digits, state and limit as in gcra.lua; so are refund and debit.

local MARK = 4503599627370496 -- 2^52 microseconds: added to the instant of a state in debt
local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false

local function decide(state, from, now, cost, drain, unit, rests, full, slack)
  local full_rest = rests % 67108864
  local unit_rest = (rests - full_rest) / 67108864
  local before, before_rest, in_debt = full, full_rest, false
  if state ~= '' then
    local full_at, full_at_rest = unpack('>I8I4', state, from)
    if full_at_rest >= drain then
      full_at_rest = drain - 1
    end
    if full_at >= MARK then
      full_at, in_debt = full_at - MARK, true
    end
    if full_at >= now then
      before, before_rest = full - (full_at - now), full_rest - full_at_rest
      if before_rest < 0 then
        before, before_rest = before - 1, before_rest + drain
      end
    end
  end
  local ticks = cost * unit_rest
  local price_rest = ticks % drain
  local tokens, rest = before - cost * unit - (ticks - price_rest) / drain, before_rest - price_rest
  if rest < 0 then
    tokens, rest = tokens - 1, rest + drain
  end
  if tokens < 0 then
    if before < -slack and not in_debt then -- the clock stepped back far, or the limit was changed
      state, ahead = pack('>I8I4', now + full + slack, full_rest), true
    end
    return state, false, from + 12
  end
  local missing, missing_rest = full - tokens, full_rest - rest
  if missing_rest < 0 then
    missing, missing_rest = missing - 1, missing_rest + drain
  end
  return pack('>I8I4', now + missing, missing_rest), true, from + 12
end

return decide

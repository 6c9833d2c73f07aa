-- Twin of token_bucket.py: the same names in the same order, no redis.call, whole numbers below 2^53.
-- Numbers in two digits, state and limit as in gcra.lua; so is the refund.

local pack, unpack, values = struct.pack, struct.unpack, unpack

local function decide(state, from, now, cost, drain, unit, unit_rest, full, full_rest)
  local tokens, rest = full, full_rest
  if state ~= '' then
    local full_at, full_at_rest = unpack('>I8I4', state, from)
    if full_at >= now then
      tokens, rest = tokens - (full_at - now), rest - full_at_rest
      if rest < 0 then
        tokens, rest = tokens - 1, rest + drain
      end
      if tokens < 0 then -- the clock stepped back, or the burst was lowered: an empty purse is the worst
        tokens, rest = 0, 0
        state = pack('>I8I4', now + full, full_rest)
      end
    end
  end
  local ticks = cost * unit_rest
  local price_rest = ticks % drain
  tokens, rest = tokens - cost * unit - (ticks - price_rest) / drain, rest - price_rest
  if rest < 0 then
    tokens, rest = tokens - 1, rest + drain
  end
  if tokens < 0 then
    return state, false, from + 12
  end
  local missing, missing_rest = full - tokens, full_rest - rest
  if missing_rest < 0 then
    missing, missing_rest = missing - 1, missing_rest + drain
  end
  return pack('>I8I4', now + missing, missing_rest), true, from + 12
end

return decide

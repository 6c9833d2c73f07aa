-- Twin of leaky_bucket.py: the same names in the same order, no redis.call, whole numbers below 2^53.
-- Numbers in two digits, state and limit as in gcra.lua; so is the refund.

local pack, unpack, values = struct.pack, struct.unpack, unpack

local function decide(state, from, now, cost, drain, unit, unit_rest, full, full_rest)
  local queued, rest = 0, 0
  if state ~= '' then
    local empty_at, empty_at_rest = unpack('>I8I4', state, from)
    if empty_at >= now then
      queued, rest = empty_at - now, empty_at_rest
      if queued > full or queued == full and rest > full_rest then
        -- the clock stepped back, or the burst was lowered: the queue is full at worst
        queued, rest = full, full_rest
        state = pack('>I8I4', now + queued, rest)
      end
    end
  end
  local ticks = rest + cost * unit_rest
  rest = ticks % drain
  queued = queued + cost * unit + (ticks - rest) / drain
  if queued > full or queued == full and rest > full_rest then
    return state, false, from + 12
  end
  return pack('>I8I4', now + queued, rest), true, from + 12
end

return decide

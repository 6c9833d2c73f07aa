-- Twin of gcra.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- An instant in ticks may pass 2^53, so it is kept in two digits: whole microseconds, and the ticks left over
-- (0 .. drain - 1).  a % b is exact for whole numbers below 2^53, and so is (a - a % b) / b.
--
-- state  >I8I4  tat, rest; '' is EMPTY
-- limit  drain; unit and full in two digits each, of which those left over share a number, with 2^26 between; slack
--
-- In a record of several limits a state stands behind others, from byte `from` on: so the functions also return where
-- the next one starts.  A refused state is returned as it came, in its record; one that had to be mended by itself.

local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false

local function decide(state, from, now, cost, drain, unit, rests, full, slack)
  local full_rest = rests % 67108864
  local unit_rest = (rests - full_rest) / 67108864
  local horizon = now + full
  local tat, rest = now, 0
  if state ~= '' then
    tat, rest = unpack('>I8I4', state, from)
    if tat < now then
      tat, rest = now, 0
    end
  end
  local ticks = rest + cost * unit_rest
  local new_rest = ticks % drain
  local new_tat = tat + cost * unit + (ticks - new_rest) / drain
  if new_tat > horizon or new_tat == horizon and new_rest > full_rest then
    if tat > horizon + slack or tat == horizon + slack and rest > full_rest then
      -- the clock stepped back far, or the burst was lowered
      state, ahead = pack('>I8I4', horizon + slack, full_rest), true
    end
    return state, false, from + 12
  end
  return pack('>I8I4', new_tat, new_rest), true, from + 12
end

local function refund(state, from, now, cost, taken_at, drain, unit, rests, full, slack)
  local full_rest = rests % 67108864
  local unit_rest = (rests - full_rest) / 67108864
  local owed, rest = -1, 0
  if state ~= '' then
    owed, rest = unpack('>I8I4', state, from)
    owed = owed - now
  end
  if owed < 0 or owed == 0 and rest == 0 then
    return pack('>I8I4', 0, 0), from + 12
  end
  if owed > full + slack or owed == full + slack and rest > full_rest then
    owed, rest = full + slack, full_rest
  end
  local ticks = cost * unit_rest
  local back_rest = ticks % drain
  owed = owed - cost * unit - (ticks - back_rest) / drain
  rest = rest - back_rest
  if rest < 0 then
    owed, rest = owed - 1, rest + drain
  end
  if owed < 0 or owed == 0 and rest == 0 then
    return pack('>I8I4', 0, 0), from + 12
  end
  ahead = ahead or owed > full
  return pack('>I8I4', now + owed, rest), from + 12
end

return decide, refund

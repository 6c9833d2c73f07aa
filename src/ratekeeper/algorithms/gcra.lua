-- Twin of gcra.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- An instant in ticks may pass 2^53, so it is kept in two digits: whole microseconds, and the ticks left over
-- (0 .. drain - 1).  a % b is exact for whole numbers below 2^53, and so is (a - a % b) / b.
--
-- state  >I8I4  tat, rest; '' is EMPTY
-- limit  drain; unit and full in two digits each
--
-- In a record of several limits a state stands behind others, from byte `from` on: so the functions also return where
-- the next one starts.  A refused state is returned as it came, in its record; one that had to be mended by itself.

local pack, unpack, values = struct.pack, struct.unpack, unpack

local function decide(state, from, now, cost, drain, unit, unit_rest, full, full_rest)
  local horizon = now + full
  local tat, rest = now, 0
  if state ~= '' then
    tat, rest = unpack('>I8I4', state, from)
    if tat < now then
      tat, rest = now, 0
    elseif tat > horizon or tat == horizon and rest > full_rest then
      -- the clock stepped back, or the burst was lowered: never owe more than a burst
      tat, rest = horizon, full_rest
      state = pack('>I8I4', tat, rest)
    end
  end
  local ticks = rest + cost * unit_rest
  rest = ticks % drain
  tat = tat + cost * unit + (ticks - rest) / drain
  if tat > horizon or tat == horizon and rest > full_rest then
    return state, false, from + 12
  end
  return pack('>I8I4', tat, rest), true, from + 12
end

local function refund(state, from, now, cost, taken_at, drain, unit, unit_rest, full, full_rest)
  local owed, rest = -1, 0
  if state ~= '' then
    owed, rest = unpack('>I8I4', state, from)
    owed = owed - now
  end
  if owed < 0 or owed == 0 and rest == 0 then
    return pack('>I8I4', 0, 0), from + 12
  end
  if owed > full or owed == full and rest > full_rest then
    owed, rest = full, full_rest
  end
  local ticks = cost * unit_rest
  local back_rest = ticks % drain
  owed = owed - cost * unit - (ticks - back_rest) / drain
  rest = rest - back_rest
  if rest < 0 then
    owed, rest = owed - 1, rest + drain
  end
  if owed < 0 then
    owed, rest = 0, 0
  end
  return pack('>I8I4', now + owed, rest), from + 12
end

return decide, refund

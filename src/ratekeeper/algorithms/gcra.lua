-- Twin of gcra.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- An instant in ticks may pass 2^53, so it is kept in two digits: whole microseconds, and the ticks left over
-- (0 .. drain - 1).  If the limit was changed, those of another rate count as drain - 1 at most.  a % b is exact for whole
-- numbers below 2^53, and so is (a - a % b) / b.
--
-- state  >I8I4  tat, rest; '' is EMPTY
-- limit  drain; unit and full in two digits each, of which those left over share a number, with 2^26 between; slack
--
-- In a record of several limits a state stands behind others, from byte `from` on: so the functions also return where
-- the next one starts.  A refused state is returned as it came, in its record; one that had to be mended by itself.

local MARK = 4503599627370496 -- 2^52 microseconds: added to the instant of a state in debt
local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false

local function decide(state, from, now, cost, drain, unit, rests, full, slack)
  local full_rest = rests % 67108864
  local unit_rest = (rests - full_rest) / 67108864
  local horizon = now + full
  local tat, rest, in_debt = now, 0, false
  if state ~= '' then
    tat, rest = unpack('>I8I4', state, from)
    if rest >= drain then
      rest = drain - 1
    end
    if tat >= MARK then
      tat, in_debt = tat - MARK, true
    end
    if tat < now then
      tat, rest = now, 0
    end
  end
  local ticks = rest + cost * unit_rest
  local new_rest = ticks % drain
  local new_tat = tat + cost * unit + (ticks - new_rest) / drain
  if new_tat > horizon or new_tat == horizon and new_rest > full_rest then
    if not in_debt and (tat > horizon + slack or tat == horizon + slack and rest > full_rest) then
      -- the clock stepped back far, or the limit was changed
      state, ahead = pack('>I8I4', horizon + slack, full_rest), true
    end
    return state, false, from + 12
  end
  return pack('>I8I4', new_tat, new_rest), true, from + 12
end

-- The ticks that a state owes, in two digits; `ceiling` is full + slack.
local function backlog(state, from, now, drain, ceiling, full_rest)
  if state == '' then
    return 0, 0
  end
  local owed, rest = unpack('>I8I4', state, from)
  if rest >= drain then
    rest = drain - 1
  end
  local in_debt = owed >= MARK
  owed = in_debt and owed - MARK - now or owed - now
  if owed < 0 then
    return 0, 0
  elseif not in_debt and (owed > ceiling or owed == ceiling and rest > full_rest) then
    return ceiling, full_rest
  end
  return owed, rest
end

-- The state that owes so many ticks.
local function owing(owed, rest, now, drain, full, ceiling, full_rest)
  if owed < 0 or owed == 0 and rest == 0 then
    return pack('>I8I4', 0, 0)
  elseif owed > ceiling or owed == ceiling and rest > full_rest then
    if now + owed >= MARK then
      return pack('>I8I4', MARK + (MARK - 1), drain - 1)
    end
    return pack('>I8I4', MARK + now + owed, rest)
  end
  ahead = ahead or owed > full
  return pack('>I8I4', now + owed, rest)
end

local function refund(state, from, now, cost, taken_at, drain, unit, rests, full, slack)
  local full_rest = rests % 67108864
  local unit_rest = (rests - full_rest) / 67108864
  local owed, rest = backlog(state, from, now, drain, full + slack, full_rest)
  local ticks = cost * unit_rest
  local back_rest = ticks % drain
  owed = owed - cost * unit - (ticks - back_rest) / drain
  rest = rest - back_rest
  if rest < 0 then
    owed, rest = owed - 1, rest + drain
  end
  return owing(owed, rest, now, drain, full, full + slack, full_rest), from + 12
end

-- Of the limit it needs other numbers: full + slack in the place of full, and how many units it may owe.
local function debit(state, from, now, cost, drain, unit, rests, ceiling, owes)
  local full_rest = rests % 67108864
  local unit_rest = (rests - full_rest) / 67108864
  local owed, rest = backlog(state, from, now, drain, ceiling, full_rest)
  local function ticks(units)
    local small = units * unit_rest
    return units * unit + (small - small % drain) / drain, small % drain
  end
  local most, most_rest = ticks(owes)
  local after, after_rest = ticks(cost)
  after, after_rest = owed + after, rest + after_rest
  if after_rest >= drain then
    after, after_rest = after + 1, after_rest - drain
  end
  if after > most or after == most and after_rest > most_rest then
    after, after_rest = most, most_rest
  end
  if after > owed or after == owed and after_rest > rest then
    owed, rest = after, after_rest
  end
  return owing(owed, rest, now, drain, ceiling, ceiling, full_rest), from + 12
end

return decide, refund, debit

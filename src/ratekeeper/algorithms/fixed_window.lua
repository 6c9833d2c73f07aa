-- Twin of fixed_window.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- state  >I7I5  now, used in its window; '' is EMPTY
-- limit  micros, count

local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false

local function decide(state, from, now, cost, micros, count)
  local used, instant = 0, now
  if state ~= '' then
    local stored, before = unpack('>I7I5', state, from)
    local window = now - now % micros
    if stored >= window then
      used = before
      if stored >= window + micros then
        if stored < window + 2 * micros then -- the clock stepped back: the later window stays the current one
          instant, ahead = stored, true
        else -- further than one period: what was used counts in the present window
          state = pack('>I7I5', now, used)
        end
      end
    end
  end
  used = used + cost
  if used > count then
    return state, false, from + 12
  end
  return pack('>I7I5', instant, used), true, from + 12
end

local function refund(state, from, now, cost, taken_at, micros, count)
  local stored, used = 0, 0
  if state ~= '' then
    stored, used = unpack('>I7I5', state, from)
  end
  local window, taken_in = now - now % micros, taken_at - taken_at % micros
  if stored >= window + micros and stored < window + 2 * micros then
    ahead = true
    if used > 0 and (taken_in == window or taken_in == window + micros) then
      stored, used = used > cost and stored or 0, math.max(0, used - cost)
    end
  elseif stored >= window and used > 0 and taken_in == window then
    stored, used = used > cost and now or 0, math.max(0, used - cost)
  end
  return pack('>I7I5', stored, used), from + 12
end

-- `owes` stands in the place of the count.
local function debit(state, from, now, cost, micros, owes)
  local window, instant, used = now - now % micros, now, 0
  if state ~= '' then
    local stored, before = unpack('>I7I5', state, from)
    if stored >= window then
      used = before
      if stored >= window + micros and stored < window + 2 * micros then
        instant, ahead = stored, true
      end
    end
  end
  return pack('>I7I5', instant, math.max(used, math.min(used + cost, owes))), from + 12
end

return decide, refund, debit

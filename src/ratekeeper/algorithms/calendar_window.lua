-- Twin of calendar_window.py: the same names in the same order, no redis.call, whole numbers below 2^53.
-- The edges are those around the caller's present: the window before it, the present one and the one after it.  Where
-- now is outside of them, as the caller's clock is far off, windows are as long as the present one.
--
-- state  >I7I5  now, used in its window; '' is EMPTY
-- limit  count, first, second, third, fourth edge

local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false

local function decide(state, from, now, cost, count, first, second, third, fourth)
  local used, instant = 0, now
  if state ~= '' then
    local stored, before = unpack('>I7I5', state, from)
    local start, stop, last = second, third, fourth
    if now < first or now >= fourth then
      start = now - (now - second) % (third - second)
      stop, last = start + third - second, start + 2 * (third - second)
    elseif now < second then
      start, stop, last = first, second, third
    elseif now >= third then
      start, stop, last = third, fourth, 2 * fourth - third
    end
    if stored >= start then
      used = before
      if stored >= stop then
        if stored < last then -- the clock stepped back: the later window stays the current one
          instant, ahead = stored, true
        else -- further than one window: what was used counts in the present one
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

local function refund(state, from, now, cost, taken_at, count, first, second, third, fourth)
  local stored, used = 0, 0
  if state ~= '' then
    stored, used = unpack('>I7I5', state, from)
  end
  local start, stop, last = second, third, fourth
  if now < first or now >= fourth then
    start = now - (now - second) % (third - second)
    stop, last = start + third - second, start + 2 * (third - second)
  elseif now < second then
    start, stop, last = first, second, third
  elseif now >= third then
    start, stop, last = third, fourth, 2 * fourth - third
  end
  if stored >= stop and stored < last then
    ahead = true
    if used > 0 and taken_at >= start and taken_at < last then
      stored, used = used > cost and stored or 0, math.max(0, used - cost)
    end
  elseif stored >= start and used > 0 and taken_at >= start and taken_at < stop then
    stored, used = used > cost and now or 0, math.max(0, used - cost)
  end
  return pack('>I7I5', stored, used), from + 12
end

-- `owes` stands in the place of the count.
local function debit(state, from, now, cost, owes, first, second, third, fourth)
  local instant, used = now, 0
  if state ~= '' then
    local stored, before = unpack('>I7I5', state, from)
    local start, stop, last = second, third, fourth
    if now < first or now >= fourth then
      start = now - (now - second) % (third - second)
      stop, last = start + third - second, start + 2 * (third - second)
    elseif now < second then
      start, stop, last = first, second, third
    elseif now >= third then
      start, stop, last = third, fourth, 2 * fourth - third
    end
    if stored >= start then
      used = before
      if stored >= stop and stored < last then
        instant, ahead = stored, true
      end
    end
  end
  return pack('>I7I5', instant, math.max(used, math.min(used + cost, owes))), from + 12
end

return decide, refund, debit

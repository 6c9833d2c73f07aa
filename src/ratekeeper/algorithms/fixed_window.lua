-- Twin of fixed_window.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- state  >I7I5  now, used in its window; '' is EMPTY
-- limit  micros, count

local pack, unpack, values = struct.pack, struct.unpack, unpack

local function decide(state, from, now, cost, micros, count)
  local used = 0
  if state ~= '' then
    local stored, before = unpack('>I7I5', state, from)
    local window = now - now % micros
    if stored >= window then
      used = before
      if stored >= window + micros then -- the clock stepped back: what was used counts in the present window
        state = pack('>I7I5', now, used)
      end
    end
  end
  used = used + cost
  if used > count then
    return state, false, from + 12
  end
  return pack('>I7I5', now, used), true, from + 12
end

local function refund(state, from, now, cost, taken_at, micros, count)
  local stored, used = 0, 0
  if state ~= '' then
    stored, used = unpack('>I7I5', state, from)
  end
  local window = now - now % micros
  if stored >= window and used > 0 and taken_at - taken_at % micros == window then
    stored, used = now, math.max(0, used - cost)
  end
  return pack('>I7I5', stored, used), from + 12
end

return decide, refund

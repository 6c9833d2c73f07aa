-- Twin of fixed_window.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- state  >I7I5  window, used; '' is EMPTY
-- limit  >I8I8  micros, count

local pack, unpack, values = struct.pack, struct.unpack, unpack

local function decide(state, now, limit, cost, from, at)
  local micros, count, after = unpack('>I8I8', limit, at)
  local window = (now - now % micros) / micros
  local used = 0
  if state ~= '' then
    local stored, before = unpack('>I7I5', state, from)
    if stored >= window then
      used = before
      if stored > window then -- the clock stepped back: what was used counts in the present window
        state = pack('>I7I5', window, used)
      end
    end
  end
  used = used + cost
  if used > count then
    return state, false, from + 12, after
  end
  return pack('>I7I5', window, used), true, from + 12, after
end

local function refund(state, now, limit, cost, from, at, taken_at)
  local micros, _, after = unpack('>I8I8', limit, at)
  local window = (now - now % micros) / micros
  local stored, used = 0, 0
  if state ~= '' then
    stored, used = unpack('>I7I5', state, from)
  end
  if stored >= window and used > 0 and (taken_at - taken_at % micros) / micros == window then
    stored, used = window, math.max(0, used - cost)
  end
  return pack('>I7I5', stored, used), from + 12, after
end

return decide, refund

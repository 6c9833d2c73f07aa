-- Twin of first_use_window.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- state  >I7I7I5  now, start of the window, used in it; '' is EMPTY
-- limit  micros, count

local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false

local function decide(state, from, now, cost, micros, count)
  local start, used = now, 0
  if state ~= '' then
    local _, stored, before = unpack('>I7I7I5', state, from)
    if before > 0 and now < stored + micros then
      start, used = stored, before
      if stored >= now + micros then -- the clock stepped back by a period or more: the window starts now
        start, state = now, pack('>I7I7I5', now, now, used)
      elseif stored > now then
        ahead = true
      end
    end
  end
  used = used + cost
  if used > count then
    return state, false, from + 19
  end
  return pack('>I7I7I5', now, start, used), true, from + 19
end

local function refund(state, from, now, cost, taken_at, micros, count)
  local start, used = 0, 0
  if state ~= '' then
    local _
    _, start, used = unpack('>I7I7I5', state, from)
  end
  local present = start >= now + micros and now or start
  if used > 0 and now < present + micros then
    ahead = present > now
    if taken_at >= math.min(present, now) and taken_at < present + micros then
      start, used = present, math.max(0, used - cost)
    end
  end
  if used == 0 then
    return pack('>I7I7I5', 0, 0, 0), from + 19
  end
  return pack('>I7I7I5', now, start, used), from + 19
end

-- `owes` stands in the place of the count.
local function debit(state, from, now, cost, micros, owes)
  local start, used = now, 0
  if state ~= '' then
    local _, stored, before = unpack('>I7I7I5', state, from)
    if before > 0 and now < stored + micros then
      start, used = stored < now + micros and stored or now, before
      ahead = ahead or start > now
    end
  end
  return pack('>I7I7I5', now, start, math.max(used, math.min(used + cost, owes))), from + 19
end

return decide, refund, debit

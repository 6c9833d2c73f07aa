-- Twin of sliding_window.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- state  >I7, then I5 for each counter, newest first: now, and what was counted until then; '' is EMPTY
-- limit  slices, micros, count, owes

local TOO_LARGE = 9007199254740992 -- 2^53: from here on a double may be rounded
local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false

local function decide(state, from, now, cost, slices, width, count, owes)
  local next_from = from + 12 + 5 * slices
  if slices == 1 then -- two counters, the classic case: the same as below without a table
    local within = now % width
    local window, left = now - within, width - within
    local newer, older, instant = 0, 0, now
    if state ~= '' then
      local stored
      stored, newer, older = unpack('>I7I5I5', state, from)
      if stored < window then
        newer, older = 0, stored >= window - width and newer or 0
      elseif stored >= window + width then
        if stored < window + 2 * width then -- the clock stepped back: it is taken to be where that window began
          instant, left, ahead = stored, width, true
        else -- further than one period: all that was counted counts in the present window
          newer, older = math.min(count, newer + older), 0
          state = pack('>I7I5I5', now, newer, older)
        end
      end
    end
    local room = count - cost - newer
    local weight, most = math.min(older, owes) * left, room * width -- the limit may have been lowered
    if room < 0 or weight > most then
      return state, false, next_from
    elseif weight < most or weight < TOO_LARGE then
      return pack('>I7I5I5', instant, newer + cost, older), true, next_from
    end -- else rounded, and told apart below
  end
  -- include sliding_slices.lua
  local window, slice, left = locate(now, slices, width)
  local counters, passed, instant = counted(state, from, now, window, slice, slices, width, count)
  if passed < -slices then
    state = pack('>I7I5', now, counters[1]) .. string.rep('\0', 5 * slices)
  elseif passed < 0 then
    left, ahead = width, true
  end
  local room = count - cost
  for age = 1, slices do
    room = room - counters[age]
  end
  if room < 0 or exceeds(math.min(counters[slices + 1], owes), left, room, width) then
    return state, false, next_from
  end
  counters[1] = counters[1] + cost
  return pack('>I7' .. string.rep('I5', slices + 1), instant, values(counters)), true, next_from
end

local function refund(state, from, now, cost, taken_at, slices, width, count)
  -- include sliding_slices.lua
  local window, slice = locate(now, slices, width)
  local counters, passed, instant = counted(state, from, now, window, slice, slices, width, count)
  local at_window, at_slice = locate(taken_at, slices, width)
  local age = (window - at_window) * slices + slice - at_slice
  if instant ~= now then
    ahead = true
    age = age > 0 and age - passed or 0
  end
  local left = 0
  for index = 1, slices + 1 do
    if index > age then
      local back = math.min(cost, counters[index])
      counters[index] = counters[index] - back
      cost = cost - back
    end
    left = left + counters[index]
  end
  local new = pack('>I7' .. string.rep('I5', slices + 1), left > 0 and instant or 0, values(counters))
  return new, from + 12 + 5 * slices
end

local function debit(state, from, now, cost, slices, width, count, owes)
  -- include sliding_slices.lua
  local window, slice, left = locate(now, slices, width)
  local counters, passed, instant = counted(state, from, now, window, slice, slices, width, count)
  if instant ~= now then
    left, ahead = width, true
  end
  local oldest = math.min(counters[slices + 1], owes)
  local low, high, used = 0, oldest, 0
  while low < high do -- the least weight, rounded up, that the oldest does not exceed
    local middle = (low + high - (low + high) % 2) / 2
    if exceeds(oldest, left, middle, width) then low = middle + 1 else high = middle end
  end
  for age = 1, slices do
    used = used + counters[age]
  end
  counters[1] = counters[1] + math.min(cost, math.max(0, owes - used - low))
  used = 0
  for age = 1, slices + 1 do
    used = used + counters[age]
  end
  local new = pack('>I7' .. string.rep('I5', slices + 1), used > 0 and instant or 0, values(counters))
  return new, from + 12 + 5 * slices
end

return decide, refund, debit

-- Twin of sliding_window.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- The index of a slice may pass 2^53, so it is kept in two digits: the window, and the slice in it.
--
-- state  >I7B, then I5 for each counter, newest first; '' is EMPTY
-- limit  >BI8I8  slices, micros, count

local TOO_LARGE = 9007199254740992 -- 2^53: from here on a double may be rounded
local pack, unpack, values = struct.pack, struct.unpack, unpack

-- What is not needed for a check of two counters; made when it is.
local function make_rest()
  -- a * b > c * d, exactly, for numbers below 2^46.  Rounding keeps order, so only a tie can deceive.
  local function exceeds(a, b, c, d)
    local left, right = a * b, c * d
    if left ~= right or left < TOO_LARGE then
      return left > right
    end
    local function digits(x, y) -- of x * y, in base 2^23
      local x0, y0 = x % 8388608, y % 8388608
      local x1, y1 = (x - x0) / 8388608, (y - y0) / 8388608
      local low = x0 * y0
      local middle = x1 * y0 + x0 * y1 + (low - low % 8388608) / 8388608
      return x1 * y1 + (middle - middle % 8388608) / 8388608, middle % 8388608, low % 8388608
    end
    local a2, a1, a0 = digits(a, b)
    local c2, c1, c0 = digits(c, d)
    if a2 ~= c2 then return a2 > c2 end
    if a1 ~= c1 then return a1 > c1 end
    return a0 > c0
  end

  -- The window of an instant, the slice in that window, and what is left of the slice, in 1/slices of a microsecond.
  local function locate(instant, slices, width)
    local within = instant % width
    local position = within * slices
    local share = position % width
    return (instant - within) / width, (position - share) / width, width - share
  end

  -- The counters brought to the present slice, newest first, and how many slices passed since they were written.
  local function counted(state, from, window, slice, slices, count)
    if state == '' then
      state, from = string.rep('\0', 8 + 5 * (slices + 1)), 1
    end
    local counters = {unpack('>' .. string.rep('I5', slices + 1), state, from + 8)}
    counters[slices + 2] = nil -- unpack also says where it stopped
    local stored, stored_slice = unpack('>I7B', state, from)
    local passed = (window - stored) * slices + slice - stored_slice
    if passed > 0 then
      for age = slices + 1, 1, -1 do
        counters[age] = counters[age - passed] or 0
      end
    elseif passed < 0 then -- the clock stepped back: all that was counted counts in the present slice
      local all = 0
      for age = 1, slices + 1 do
        all, counters[age] = all + counters[age], 0
      end
      counters[1] = math.min(count, all)
    end
    return counters, passed
  end

  return exceeds, locate, counted
end

local function decide(state, now, limit, cost, from, at)
  local slices, width, count, after = unpack('>BI8I8', limit, at)
  local next_from = from + 13 + 5 * slices
  if slices == 1 then -- two counters, the classic case: the same as below without a table
    local within = now % width
    local window, left = (now - within) / width, width - within
    local newer, older = 0, 0
    if state ~= '' then
      local stored, _
      stored, _, newer, older = unpack('>I7BI5I5', state, from)
      if stored < window then
        newer, older = 0, stored + 1 == window and newer or 0
      elseif stored > window then
        newer, older = math.min(count, newer + older), 0
        state = pack('>I7BI5I5', window, 0, newer, older)
      end
    end
    local room = count - cost - newer
    local weight, most = older * left, room * width
    if room < 0 or weight > most or weight == most and weight >= TOO_LARGE and make_rest()(older, left, room, width) then
      return state, false, next_from, after
    end
    return pack('>I7BI5I5', window, 0, newer + cost, older), true, next_from, after
  end
  local exceeds, locate, counted = make_rest()
  local window, slice, left = locate(now, slices, width)
  local counters, passed = counted(state, from, window, slice, slices, count)
  if passed < 0 then
    state = pack('>I7BI5', window, slice, counters[1]) .. string.rep('\0', 5 * slices)
  end
  local room = count - cost
  for age = 1, slices do
    room = room - counters[age]
  end
  if room < 0 or exceeds(counters[slices + 1], left, room, width) then
    return state, false, next_from, after
  end
  counters[1] = counters[1] + cost
  return pack('>I7B' .. string.rep('I5', slices + 1), window, slice, values(counters)), true, next_from, after
end

local function refund(state, now, limit, cost, from, at, taken_at)
  local slices, width, count, after = unpack('>BI8I8', limit, at)
  local _, locate, counted = make_rest()
  local window, slice = locate(now, slices, width)
  local counters = counted(state, from, window, slice, slices, count)
  local at_window, at_slice = locate(taken_at, slices, width)
  local age = (window - at_window) * slices + slice - at_slice
  for index = math.max(0, age) + 1, slices + 1 do
    local back = math.min(cost, counters[index])
    counters[index] = counters[index] - back
    cost = cost - back
  end
  local new = pack('>I7B' .. string.rep('I5', slices + 1), window, slice, values(counters))
  return new, from + 13 + 5 * slices, after
end

return decide, refund

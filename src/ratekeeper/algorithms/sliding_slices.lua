-- What sliding_window.lua needs for any number of slices; a check of two counters does without.

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
-- (The index of a slice may pass 2^53, so it has two digits.)
local function locate(instant, slices, width)
  local within = instant % width
  local position = within * slices
  local share = position % width
  return (instant - within) / width, (position - share) / width, width - share
end

-- The counters brought to the present slice, newest first, how many slices passed since they were written, and an instant
-- of the newest slice: now, unless the clock stepped back by one period at most.
local function counted(state, from, now, window, slice, slices, width, count)
  if state == '' then
    state, from = string.rep('\0', 7 + 5 * (slices + 1)), 1
  end
  local counters = {unpack('>' .. string.rep('I5', slices + 1), state, from + 7)}
  counters[slices + 2] = nil -- unpack also says where it stopped
  local made = unpack('>I7', state, from)
  local stored, stored_slice = locate(made, slices, width)
  local passed = (window - stored) * slices + slice - stored_slice
  if passed > 0 then
    for age = slices + 1, 1, -1 do
      counters[age] = counters[age - passed] or 0
    end
  elseif passed < -slices then -- the clock stepped back further: all that was counted counts in the present slice
    local all = 0
    for age = 1, slices + 1 do
      all, counters[age] = all + counters[age], 0
    end
    counters[1] = math.min(count, all)
  end
  return counters, passed, passed < 0 and passed >= -slices and made or now
end

-- Twin of sliding_log.py: the same names in the same order, no redis.call, whole numbers below 2^53.
--
-- state  an instant in I7 for each unit of cost, oldest first, so that an admission ends with now; '' is EMPTY
-- limit  micros, count

local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false

-- How many came no later than `instant`.  Mostly the few oldest: they are looked at before the rest is halved.
local function bisect_right(state, instant)
  local low, high = 0, #state / 7
  while low < 3 and low < high do
    if unpack('>I7', state, low * 7 + 1) > instant then
      return low
    end
    low = low + 1
  end
  while low < high do
    local middle = (low + high - (low + high) % 2) / 2
    if unpack('>I7', state, middle * 7 + 1) > instant then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function decide(state, from, now, cost, micros, count)
  local size, next_from, instant = #state / 7, from + #state, now
  if size > 0 and unpack('>I7', state, #state - 6) > now then
    local newest, past = unpack('>I7', state, #state - 6), bisect_right(state, now)
    if newest < now + micros then -- the clock stepped back: it is taken to be where the newest came
      instant, ahead = newest, true
    else -- by one period or more: nothing was admitted after now
      state = string.sub(state, 1, past * 7) .. string.rep(pack('>I7', now), size - past)
    end
  end
  local gone = bisect_right(state, instant - micros)
  if size - gone + cost > count then
    return state, false, next_from
  end
  local stamp = pack('>I7', instant)
  return string.sub(state, gone * 7 + 1) .. (cost == 1 and stamp or string.rep(stamp, cost)), true, next_from
end

local function refund(state, from, now, cost, taken_at)
  -- What was taken at or after now, though the clock stepped back, was entered as the newest.
  local past = taken_at >= now and #state / 7 or bisect_right(state, taken_at)
  ahead = ahead or #state > 0 and unpack('>I7', state, #state - 6) > now
  local new = string.sub(state, 1, math.max(0, past - cost) * 7) .. string.sub(state, past * 7 + 1)
  return new, from + #state
end

-- `owes` follows the numbers of the limit.  A full log forgets its oldest: see sliding_log.py.
local function debit(state, from, now, cost, micros, count, owes)
  local size, next_from = #state / 7, from + #state
  if size > 0 then
    local newest, past = unpack('>I7', state, #state - 6), bisect_right(state, now)
    if newest >= now + micros then
      state = string.sub(state, 1, past * 7) .. string.rep(pack('>I7', now), size - past)
    elseif newest > now then
      now, ahead = newest, true
    end
  end
  local gone = bisect_right(state, now - micros)
  local live = size - gone
  local entered = math.min(cost, count, math.max(0, owes - live))
  if entered == 0 then
    return state, next_from
  end
  local new = string.sub(state, gone * 7 + 1) .. string.rep(pack('>I7', now), entered)
  return string.sub(new, -7 * math.max(count, live)), next_from
end

return decide, refund, debit

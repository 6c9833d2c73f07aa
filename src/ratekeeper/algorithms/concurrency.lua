-- Twin of concurrency.py: the same names, no redis.call, whole numbers below 2^53.
--
-- state  '' is EMPTY; else the number of notes in a byte, the notes (an instant in I7 and an id in eight bytes each), the
--        instants at which leases end in I7, earliest first, and the id of each in eight bytes
-- limit  micros, count, and of the lease: lasts (0 is micros), and the halves of its id (both 0 is NOBODY)

local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false
local sub = string.sub
local NOBODY = '\0\0\0\0\0\0\0\0'
local MOST_NOTES = 64 -- on one key
local NOTE = 15 -- bytes

-- How many end no later than `instant`.
local function bisect_right(ends, instant)
  local low, high = 0, #ends / 7
  while low < high do
    local middle = (low + high - (low + high) % 2) / 2
    if unpack('>I7', ends, middle * 7 + 1) > instant then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function open(state)
  if state == '' then
    return '', '', ''
  end
  local from = 2 + NOTE * string.byte(state)
  local till = from + (#state + 1 - from) / 15 * 7
  return sub(state, 2, from - 1), sub(state, from, till - 1), sub(state, till)
end

local function close(notes, ends, ids)
  return notes == '' and ends == '' and '' or string.char(#notes / NOTE) .. notes .. ends .. ids
end

-- The leases without those of `id`, but for the last `kept` of them.
local function without(ends, ids, id, kept)
  local places, from = {}, 1
  while true do
    local found = string.find(ids, id, from, true)
    if not found then
      break
    end
    if found % 8 == 1 then
      places[#places + 1] = (found - 1) / 8
    end
    from = found + 1
  end
  for index = #places - kept, 1, -1 do
    local place = places[index]
    ends = sub(ends, 1, place * 7) .. sub(ends, place * 7 + 8)
    ids = sub(ids, 1, place * 8) .. sub(ids, place * 8 + 9)
  end
  return ends, ids
end

local function is_withdrawn(notes, id, now)
  for at = 1, #notes, NOTE do
    if sub(notes, at + 7, at + 14) == id and unpack('>I7', notes, at) > now then
      return true
    end
  end
  return false
end

local function decide(state, from, now, cost, micros, count, lasts, high, low)
  local notes, ends, ids = open(state)
  local size, latest, id = #ends / 7, now + micros, pack('>I4I4', high, low)
  if size > 0 and unpack('>I7', ends, #ends - 6) > latest then -- the clock stepped back, or the period is shorter
    local past = bisect_right(ends, latest)
    ends = sub(ends, 1, past * 7) .. string.rep(pack('>I7', latest), size - past)
    state = close(notes, ends, ids)
  end
  if id ~= NOBODY and is_withdrawn(notes, id, now) then
    return state, false
  end
  local gone = bisect_right(ends, now)
  ends, ids = sub(ends, gone * 7 + 1), sub(ids, gone * 8 + 1)
  if id ~= NOBODY then
    ends, ids = without(ends, ids, id, 0)
  end
  if #ends / 7 + cost > count then
    return state, false
  end
  local ends_at = now + (lasts > 0 and math.min(lasts, micros) or micros)
  local at = bisect_right(ends, ends_at)
  ends = sub(ends, 1, at * 7) .. string.rep(pack('>I7', ends_at), cost) .. sub(ends, at * 7 + 1)
  ids = sub(ids, 1, at * 8) .. string.rep(id, cost) .. sub(ids, at * 8 + 1)
  return close(notes, ends, ids), true
end

-- `cost` is how many places the lease keeps, `noted_for` stands in the place of `lasts`.
local function give_back(state, now, cost, noted_for, high, low)
  local notes, ends, ids = open(state)
  local id = pack('>I4I4', high, low)
  if id == NOBODY then
    return state
  end
  ends, ids = without(ends, ids, id, cost)
  if noted_for > 0 then
    local kept = ''
    for at = 1, #notes, NOTE do
      if unpack('>I7', notes, at) > now and sub(notes, at + 7, at + 14) ~= id then
        kept = kept .. sub(notes, at, at + 14)
      end
    end
    notes = sub(kept, -NOTE * (MOST_NOTES - 1)) .. pack('>I7', now + noted_for) .. id
  end
  return close(notes, ends, ids)
end

local function refund(state, from, now, cost, taken_at, micros)
  local notes, ends, ids = open(state)
  local place = bisect_right(ends, taken_at + micros - 1)
  while cost > 0 and place * 7 < #ends and unpack('>I7', ends, place * 7 + 1) == taken_at + micros do
    if sub(ids, place * 8 + 1, place * 8 + 8) == NOBODY then
      ends = sub(ends, 1, place * 7) .. sub(ends, place * 7 + 8)
      ids = sub(ids, 1, place * 8) .. sub(ids, place * 8 + 9)
      cost = cost - 1
    else
      place = place + 1
    end
  end
  return close(notes, ends, ids)
end

return decide, refund, give_back

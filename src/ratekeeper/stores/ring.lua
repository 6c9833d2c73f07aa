-- A long log, as a ring that is changed in place: what a call costs does not grow with the log.
--
-- A record is
--     header  >I3I3I3I7I7BBB  capacity, head and size of the ring; the newest instant; the instant until which the
--             server keeps the key; how many stand in the back; from where to where the front is live
--     back    the newest instants, which go to the ring when there is no place left
--     front   a copy of the oldest in the ring
--     ring    `capacity` slots, the oldest in slot `head`
-- Instants are I7.  Back and front spare most calls a second read and a second write: what they need is at the start.
-- The server is told to keep a ring twice as long as it must, and again only when that is used up.

local HEADER = '>I3I3I3I7I7BBB'
local MOST = 6 -- instants in the back, and in the front
local BACK = 26 -- bytes before the back
local FRONT = BACK + 7 * MOST
local RING = FRONT + 7 * MOST
local LAST = '109' -- the last byte before the ring
local sub, unpack = string.sub, struct.unpack

-- Rings as a whole: rare, so these are made when they are needed.
local function make_whole()
  -- The log of a record, as sliding_log.lua has it.
  local function unroll(record)
    if record == '' then
      return ''
    end
    local capacity, head, size, _, _, backs = unpack(HEADER, record)
    local upto = math.min(capacity, head + size)
    return sub(record, RING + 1 + head * 7, RING + upto * 7)
      .. sub(record, RING + 1, RING + (head + size - upto) * 7)
      .. sub(record, BACK + 1, BACK + backs * 7)
  end

  -- Writes a log anew, in a ring of `capacity` slots at least.
  local function save_ring(key, log, capacity, ttl)
    local size = #log / 7
    capacity = math.max(size, capacity)
    local front = sub(log, 1, MOST * 7)
    local newest = unpack('>I7', log, #log - 6)
    local record = pack(HEADER, capacity, 0, size, newest, now + 2000 * ttl, 0, 0, #front / 7)
      .. string.rep('\0', MOST * 7)
      .. front
      .. string.rep('\0', MOST * 7 - #front)
      .. log
      .. string.rep('\0', (capacity - size) * 7)
    call('SET', key, record, 'PX', 2 * ttl .. '') -- `..` writes whole numbers below 10^14 as they are
  end

  return unroll, save_ring
end

-- Adds `cost` instants to a ring of which `live` are left and `gone` are not.  A new front replaces the one there is.
local function write_ring(key, ttl, count, cost, live, gone, capacity, head, size, kept, back, first, last, front)
  local stamp = pack('>I7', now)
  if cost > 1 then
    stamp = string.rep(stamp, cost)
  end
  if live + cost > capacity then
    local unroll, save_ring = make_whole()
    local log = sub(unroll(call('GET', key) or ''), gone * 7 + 1) .. stamp
    return save_ring(key, log, math.min(count, 2 * (live + cost)), ttl)
  end
  if gone > size then
    head, size, back = 0, 0, sub(back, (gone - size) * 7 + 1)
  else
    head, size = (head + gone) % capacity, size - gone
  end
  back = back .. stamp
  if #back > MOST * 7 then -- to the ring with it, which may wrap around
    local slot = (head + size) % capacity
    local fits = (capacity - slot) * 7
    call('SETRANGE', key, RING + slot * 7 .. '', sub(back, 1, fits))
    if #back > fits then
      call('SETRANGE', key, RING .. '', sub(back, fits + 1))
    end
    size, back = size + #back / 7, ''
  end
  if kept < now + 1000 * ttl then
    kept = now + 2000 * ttl
    call('PEXPIRE', key, 2 * ttl .. '')
  end
  local start = pack(HEADER, capacity, head, size, now, kept, #back / 7, first, last) .. back
  if front then
    start = start .. string.rep('\0', MOST * 7 - #back) .. front
  end
  call('SETRANGE', key, '0', start)
end

-- Instants of a ring and its back, packed, from the one at `index` on (0 is the oldest): one at least, `many` at most.
local function instants(key, start, index, many)
  local capacity, head, size, _, _, backs = unpack(HEADER, start)
  if index >= size then
    return sub(start, BACK + 1 + (index - size) * 7, BACK + backs * 7)
  end
  local slot = (head + index) % capacity
  many = math.min(many, size - index, capacity - slot)
  return call('GETRANGE', key, RING + slot * 7 .. '', RING + (slot + many) * 7 - 1 .. '')
end

-- The rule of sliding_log.lua without reading all of it.  Returns whether it fits, and a glimpse (see logs.py) of the
-- log before and after.  With a `ttl` the change is made at once, else returned, for change_ring.
local function decide_ring(key, limit, cost, ttl)
  local micros, count = unpack('>I8I4', limit)
  local capacity, head, size, newest, kept, backs, first, last = 0, 0, 0, 0, 0, 0, 0, 0
  local start = call('GETRANGE', key, '0', LAST)
  if start ~= '' then
    capacity, head, size, newest, kept, backs, first, last = unpack(HEADER, start)
  end
  if newest > now then -- the clock stepped back: rare, so read it all
    local unroll, save_ring = make_whole()
    local log = unroll(call('GET', key))
    local state, from, at = log, 1, 1
    local new, fits, then_from, then_at
    -- include decide-log
    if ttl then
      save_ring(key, new, 0, ttl)
    end
    return fits, fits and log or new, new, {whole = new}
  end

  -- How many are gone: those at the start of the front, and where that is used up, halving finds the others.
  local oldest, gone, front = now - micros, 0, nil
  if newest <= oldest or start == '' then
    gone, first, last = size + backs, 0, 0
  else
    while first < last and unpack('>I7', start, FRONT + 1 + first * 7) <= oldest do
      first, gone = first + 1, gone + 1
    end
    if first == last then
      front = instants(key, start, gone, MOST)
      if unpack('>I7', front, #front - 6) <= oldest then
        local high = size + backs
        gone = gone + #front / 7
        while gone < high do
          local middle = (gone + high - (gone + high) % 2) / 2
          if unpack('>I7', instants(key, start, middle, 1)) > oldest then high = middle else gone = middle + 1 end
        end
        front = instants(key, start, gone, MOST)
      end
      first, last = 0, #front / 7
      while unpack('>I7', front, first * 7 + 1) <= oldest do
        first, gone = first + 1, gone + 1
      end
    end
  end

  local live = size + backs - gone
  local excess = live + cost - count
  if excess > 0 then
    local blocking
    if cost > count then
      blocking = 0 -- nobody in particular: such a cost never fits
    elseif excess <= last - first then
      blocking = unpack('>I7', front or sub(start, FRONT + 1), (first + excess - 1) * 7 + 1)
    else
      blocking = unpack('>I7', instants(key, start, gone + excess - 1, 1))
    end
    return false, pack('>I3I7I7', live, blocking, newest)
  end
  local after = pack('>I3I7I7', live + cost, 0, now)
  local back = sub(start, BACK + 1, BACK + backs * 7)
  if ttl then
    write_ring(key, ttl, count, cost, live, gone, capacity, head, size, kept, back, first, last, front)
    return true, '', after
  end
  local before = pack('>I3I7I7', live, 0, live > 0 and newest or 0)
  return true, before, after, {count, cost, live, gone, capacity, head, size, kept, back, first, last, front}
end

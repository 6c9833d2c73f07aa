-- A long log, as a ring that is changed in place: what a call costs does not grow with the log.
--
-- A record is
--     header  >I3I3I3I7I7BBB  capacity, head and size of the ring; the newest instant; the instant until which the
--             server keeps the key; how many stand in the back; from where to where the front is live
--     back    the newest instants, which go to the ring when there is no place left
--     front   a copy of the oldest in the ring
--     ring    `capacity` slots, the oldest in slot `head`
-- Instants are I7.  Back and front save most calls a second read and a second write, as they are at the start.
-- The time to live of a ring is twice what it must be, so that it need not be set by every call.
--
-- The rule of sliding_log.lua without reading the whole log: from key, cost, micros and count to `allowed` and a
-- summary (LogSummary in packed_log.py) of the log `before` and `after`.  With a `ttl` the change is made at once,
-- else it is returned in `change`.  A piece of text, as several.lua is; rarely needed steps are in other files,
-- included here.

local sub = string.sub
local allowed, before, after, change = true, '', '', nil
local capacity, head, size, newest, kept, backs, first, last = 0, 0, 0, 0, 0, 0, 0, 0
local start = call('GETRANGE', key, '0', LAST)
if start ~= '' then
  capacity, head, size, newest, kept, backs, first, last = unpack(HEADER, start)
end
if newest > now then -- the clock stepped back: rare, so the whole log is read
  -- include ring_whole.lua
  local log = unroll(call('GET', key))
  local state, from, a, b, c = log, 1, micros, count, 0
  local new, fits, then_from
  -- include decide-log
  if ttl and new ~= log then
    save_ring(key, new, 0, ttl)
  end
  allowed, before, after, change = fits, fits and log or new, new, new ~= log and {whole = new} or nil
else
  -- How many instants have expired: those at the start of the front; if all of it has, a binary search finds the
  -- others.
  local oldest, gone, front = now - micros, 0, nil
  if newest <= oldest or start == '' then
    gone, first, last = size + backs, 0, 0
  else
    while first < last and unpack('>I7', start, FRONT + 1 + first * 7) <= oldest do
      first, gone = first + 1, gone + 1
    end
    if first == last then
      -- include ring_read.lua
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
    local leaves_next, blocking = newest, nil
    if live > 0 then
      leaves_next = unpack('>I7', front or start, (front and 0 or FRONT) + first * 7 + 1)
    end
    if cost > count or excess == 1 then -- a cost above the count never fits: none blocks
      blocking = leaves_next
    elseif excess <= last - first then
      blocking = unpack('>I7', front or start, (front and 0 or FRONT) + (first + excess - 1) * 7 + 1)
    else
      -- include ring_read.lua
      blocking = unpack('>I7', instants(key, start, gone + excess - 1, 1))
    end
    allowed, before = false, pack('>I3I7I7I7', live, leaves_next, blocking, newest)
  else
    after = pack('>I3I7I7I7', live + cost, now, now, now)
    local back = sub(start, BACK + 1, BACK + backs * 7)
    if ttl then
      -- include ring_write.lua
    else
      before = pack('>I3I7I7I7', live, newest, newest, newest)
      change = {count, cost, live, gone, capacity, head, size, kept, back, first, last, front}
    end
  end
end

-- Adds `cost` instants to the ring of `key`, of which `live` are left and `gone` are not.  A new front replaces the one
-- there is.

local stamp = pack('>I7', now)
if cost > 1 then
  stamp = string.rep(stamp, cost)
end
if live + cost > capacity then
  -- include ring_whole.lua
  local log = sub(unroll(call('GET', key) or ''), gone * 7 + 1) .. stamp
  save_ring(key, log, math.min(count, 2 * (live + cost)), ttl)
else
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

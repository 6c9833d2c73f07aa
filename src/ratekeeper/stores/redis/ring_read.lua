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

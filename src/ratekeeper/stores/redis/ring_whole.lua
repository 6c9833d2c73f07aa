-- Rings as a whole: rare, so these are made where they are needed.

-- The log of a record, as sliding_log.lua has it.
local function unroll(record)
  if record == '' then
    return ''
  end
  local capacity, head, size, _, _, backs = unpack(HEADER, record)
  local upto = math.min(capacity, head + size)
  return string.sub(record, RING + 1 + head * 7, RING + upto * 7)
    .. string.sub(record, RING + 1, RING + (head + size - upto) * 7)
    .. string.sub(record, BACK + 1, BACK + backs * 7)
end

-- Writes a log anew, in a ring of `capacity` slots at least.
local function save_ring(key, log, capacity, ttl)
  local size = #log / 7
  capacity = math.max(size, capacity)
  local front = string.sub(log, 1, MOST * 7)
  local newest = unpack('>I7', log, #log - 6)
  local record = pack(HEADER, capacity, 0, size, newest, now + 2000 * ttl, 0, 0, #front / 7)
    .. string.rep('\0', MOST * 7)
    .. front
    .. string.rep('\0', MOST * 7 - #front)
    .. log
    .. string.rep('\0', (capacity - size) * 7)
  call('SET', key, record, 'PX', 2 * ttl .. '') -- `..` writes whole numbers below 10^14 as they are
end

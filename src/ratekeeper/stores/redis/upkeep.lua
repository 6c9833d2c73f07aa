-- All operations but check and peek, by name: each answers a plan of `many` subjects from ARGV[at] and KEYS[key] on,
-- and returns where the next plan starts.  They may be a little slower: logs are read and written as a whole.

-- include ring_whole.lua
local upkeep = {}

local function rule(kind)
  -- include rules
end

function upkeep.load(key, kind)
  local found = call('GET', key) or ''
  return kind == WHOLE_LOG and unroll(found) or found
end

function upkeep.save(key, kind, record, ttl)
  if record == '' then
    call('DEL', key)
  elseif kind == WHOLE_LOG then
    save_ring(key, record, 0, ttl)
  else
    call('SET', key, record, 'PX', ttl)
  end
end

local function reply(records)
  if #records > 1 then
    for index = 1, #records do
      records[index] = pack('>I4', #records[index]) .. records[index]
    end
  end
  return string.rep('\1', #records) .. pack('>I8', now) .. table.concat(records)
end

-- The same limits with another cost.
local function with_cost(limits, cost)
  local found, at = '', 0
  repeat
    local kind, _, a, b, c, d, e
    at, kind, _, a, b, c, d, e = read(limits, NUMBERS, at)
    found = found .. cmsgpack.pack(kind, cost, a, b, c, d, e)
  until at < 0
  return found
end

-- The largest cost that every subject admits, up to the given one: found by binary search.
function upkeep.take(many, at, key)
  local subjects, low = {}, 0
  local _, _, high = read(ARGV[at], NUMBERS, 0)
  for index = 1, many do
    local name, kind = KEYS[key + index - 1], string.byte(ARGV[at])
    subjects[index] = {
      key = name, kind = kind, limits = ARGV[at], ttl = ARGV[at + 1], record = upkeep.load(name, kind)
    }
    at = at + 2
  end
  local function fit(cost)
    for index = 1, many do
      local subject = subjects[index]
      local new, fits = decide(subject.record, with_cost(subject.limits, cost))
      if not fits then
        return false
      end
      subject.new = new
    end
    return true
  end
  while low < high do
    local middle = (low + high + 1 - (low + high + 1) % 2) / 2
    if fit(middle) then low = middle else high = middle - 1 end
  end
  local taken, records = low > 0 and fit(low), {}
  for index = 1, many do
    local subject = subjects[index]
    if taken then
      upkeep.save(subject.key, subject.kind, subject.new, subject.ttl)
    end
    records[index] = taken and subject.new or subject.record
  end
  return reply(records), at
end

function upkeep.refund(many, at, key)
  local taken_at = ARGV[at] == '' and now or ARGV[at] + 0
  local records = {}
  at = at + 1
  for index = 1, many do
    local name, limits, ttl = KEYS[key + index - 1], ARGV[at], ARGV[at + 1]
    local kind = string.byte(limits)
    local record, new = upkeep.load(name, kind), ''
    local from, limit_at = kind == BUCKET and 9 or 1, 0
    repeat
      local kind, cost, a, b, c, d, e, part
      limit_at, kind, cost, a, b, c, d, e = read(limits, NUMBERS, limit_at)
      local _, refund = rule(kind)
      part, from = refund(record, from, now, cost, taken_at, a, b, c, d, e)
      new = new .. part
    until limit_at < 0
    if not is_log(kind) and not string.find(new, '[^%z]') then -- only EMPTY states
      new = ''
    elseif kind == BUCKET then
      new = pack('>I8', now) .. new
    end
    records[index] = new
    if new ~= record then
      upkeep.save(name, kind, new, ttl)
    end
    at = at + 2
  end
  return reply(records), at
end

function upkeep.states(many, at, key)
  local records = {}
  for index = 1, many do
    records[index] = upkeep.load(KEYS[key + index - 1], string.byte(ARGV[at + index - 1]))
  end
  return reply(records), at + many
end

function upkeep.reset(many, at, key)
  local records = {}
  for index = 1, many do
    call('DEL', KEYS[key + index - 1])
    records[index] = ''
  end
  return reply(records), at + many
end

return upkeep

-- All operations but check and peek, by name: each answers a plan of `many` subjects from ARGV[at] and KEYS[key] on,
-- and says where the next plan starts.  They may take a little longer: logs are read and written whole.

local _, _, make_whole = make_ring()
local unroll, save_ring = make_whole()
local upkeep = {}

local function rule(kind)
  -- include rules
end

function upkeep.load(key, kinds)
  local found = call('GET', key) or ''
  return kinds == WHOLE_LOG and unroll(found) or found
end

function upkeep.save(key, kinds, record, ttl)
  if record == '' then
    call('DEL', key)
  elseif kinds == WHOLE_LOG then
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

-- The largest cost that every subject admits, up to the one that was asked for: found by halving.
function upkeep.take(many, at, key)
  local subjects, low, high = {}, 0, ARGV[at + 1] + 0
  for index = 1, many do
    local name, kinds = KEYS[key + index - 1], ARGV[at]
    subjects[index] = {
      key = name, kinds = kinds, ttl = ARGV[at + 2], limits = ARGV[at + 3], record = upkeep.load(name, kinds)
    }
    at = at + 4
  end
  local function fit(cost)
    for index = 1, many do
      local subject = subjects[index]
      local new, fits = decide(subject.record, subject.kinds, subject.limits, cost)
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
      upkeep.save(subject.key, subject.kinds, subject.new, subject.ttl)
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
    local name, kinds, cost, ttl, limits = KEYS[key + index - 1], ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2], ARGV[at + 3]
    local record, new = upkeep.load(name, kinds), ''
    local number, from, limit_at = 1, 1, 1
    repeat
      local kind = string.sub(kinds, math.min(number, #kinds), math.min(number, #kinds))
      local _, refund = rule(kind)
      local part
      part, from, limit_at = refund(record, now, limits, cost, from, limit_at, taken_at)
      number, new = number + 1, new .. part
    until limit_at > #limits
    if not is_log(kinds) and not string.find(new, '[^%z]') then -- nothing but EMPTY states
      new = ''
    end
    records[index] = new
    if new ~= record then
      upkeep.save(name, kinds, new, ttl)
    end
    at = at + 4
  end
  return reply(records), at
end

function upkeep.states(many, at, key)
  local records = {}
  for index = 1, many do
    records[index] = upkeep.load(KEYS[key + index - 1], ARGV[at + index - 1])
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

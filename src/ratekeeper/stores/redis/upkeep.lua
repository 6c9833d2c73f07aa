-- All operations but check and peek, by name: each answers a plan of `many` subjects from ARGV[at] and KEYS[key] on,
-- and returns where the next plan starts.  They may be a little slower: logs are read and written as a whole.

-- include ring_whole.lua
local WINDOW = 102 -- f
local TOKENS = 116 -- t
local QUEUE = 108 -- l
local MARK = 4503599627370496 -- of gcra.lua
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
    call('SET', key, record, 'PX', ahead and 2 * ttl .. '' or ttl)
  end
end

local function shown(kind, record)
  return kind == LEASES and without_notes(record) or record
end

local function reply(records)
  if #records > 1 then
    for index = 1, #records do
      records[index] = pack('>I4', #records[index]) .. records[index]
    end
  end
  return string.rep('\1', #records) .. pack('>I8', now) .. table.concat(records)
end

local function is_bucket(kind)
  return kind == BUCKET or kind == TOKENS or kind == QUEUE
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
    records[index] = shown(subject.kind, taken and subject.new or subject.record)
  end
  return reply(records), at
end

-- Takes of every limit, each by itself, as much of its own cost as fits: to charge for what was admitted elsewhere.
function upkeep.charge(many, at, key)
  local records = {}
  for index = 1, many do
    local name, limits, ttl = KEYS[key + index - 1], ARGV[at], ARGV[at + 1]
    local first = string.byte(limits)
    local record, new = upkeep.load(name, first), ''
    local is_stamped = is_bucket(first)
    local from, limit_at = is_stamped and 9 or 1, 0
    repeat
      local kind, cost, a, b, c, d, e
      limit_at, kind, cost, a, b, c, d, e = read(limits, NUMBERS, limit_at)
      local decide_one = rule(kind)
      local low, high = 0, cost
      while low < high do
        local middle = (low + high + 1 - (low + high + 1) % 2) / 2
        local _, fits = decide_one(record, from, now, middle, a, b, c, d, e)
        if fits then low = middle else high = middle - 1 end
      end
      local part, fits, next_from = decide_one(record, from, now, low, a, b, c, d, e)
      if not fits then -- the limit was lowered, and this one is above it
        part = next_from and string.sub(record, from, next_from - 1) or record
      end
      new, from = new .. part, next_from
    until limit_at < 0
    if is_stamped then
      new = pack('>I8', now) .. new
    end
    upkeep.save(name, first, new, ttl)
    records[index] = new
    at = at + 2
  end
  return reply(records), at
end

-- Changes every limit by itself: `change` returns its new state, and where that of the next one starts.
local function change_all(many, at, key, change)
  local records = {}
  for index = 1, many do
    local name, limits, ttl = KEYS[key + index - 1], ARGV[at], ARGV[at + 1]
    local kind, longest = string.byte(limits), 0
    local record, new = upkeep.load(name, kind), ''
    local from, limit_at = kind == BUCKET and 9 or 1, 0
    repeat
      local kind, cost, a, b, c, d, e, part
      limit_at, kind, cost, a, b, c, d, e = read(limits, NUMBERS, limit_at)
      part, from = change(record, from, kind, cost, a, b, c, d, e)
      if kind == BUCKET and unpack('>I8', part) >= MARK then -- kept until the debt is recovered
        local debt = unpack('>I8', part) - MARK - now
        longest = math.max(longest, (debt - debt % 1000) / 1000 + 1)
      end
      new = new .. part
    until limit_at < 0
    if not is_log(kind) and not string.find(new, '[^%z]') then -- only EMPTY states
      new = ''
    elseif kind == BUCKET then
      new = pack('>I8', now) .. new
    end
    records[index] = shown(kind, new)
    if new ~= record then
      if longest > 0 then -- times to live are below 10^14
        ttl = ttl + longest
        ttl = ttl .. ''
      end
      upkeep.save(name, kind, new, ttl)
    end
    at = at + 2
  end
  return reply(records), at
end

function upkeep.refund(many, at, key)
  local taken_at = ARGV[at] == '' and now or ARGV[at] + 0
  return change_all(many, at + 1, key, function(record, from, kind, cost, a, b, c, d, e)
    local _, refund = rule(kind)
    return refund(record, from, now, cost, taken_at, a, b, c, d, e)
  end)
end

-- The last of a limit's numbers says how much may be owed: see packed_debit in layout.py.
function upkeep.debit(many, at, key)
  return change_all(many, at, key, function(record, from, kind, cost, a, b, c, d, e)
    local _, _, debit = rule(kind)
    return debit(record, from, now, cost, a, b, c, d, e)
  end)
end

-- The record of a bucket or a window after `unused` was given back, taken at that instant.  Twin of `returned` in
-- prefetch.py: of a bucket, what could have refilled since then is not given back.
local function returned(record, limits, unused, taken_at)
  local _, kind, _, a, b, c, d, e = read(limits, NUMBERS, 0)
  if kind == WINDOW then
    local _, refund = rule(kind)
    return (refund(record, 1, now, unused, taken_at, a, b, c, d, e))
  end
  local drain, unit, full, slack = a, b, d, e -- as in gcra.lua
  local full_rest = c % 67108864
  local unit_rest = (c - full_rest) / 67108864
  local tat, rest = unpack('>I8I4', record, 9)
  if rest >= drain then
    rest = drain - 1
  end
  local owed = tat - now
  if owed < 0 or tat >= MARK then -- in debt: nothing is left to be given back
    return record
  elseif owed > full + slack or owed == full + slack and rest > full_rest then
    owed, rest = full + slack, full_rest
  end
  local ticks = unused * unit_rest
  local back_rest = ticks % drain
  local back = unused * unit + (ticks - back_rest) / drain - math.max(0, now - taken_at)
  if back < 0 then
    return record
  end
  owed, rest = owed - back, rest - back_rest
  if rest < 0 then
    owed, rest = owed - 1, rest + drain
  end
  if owed < 0 then
    owed, rest = 0, 0
  end
  return pack('>I8I8I4', now, now + owed, rest)
end

-- One bucket or window: gives back what was `unused` of an earlier quota, then takes the cost; if that does not fit,
-- only `least` of it.  The flag of the reply is 0 if nothing was taken, 1 if all of it, 5 if only `least`.
function upkeep.prefetch(_, at, key)
  local least, unused, taken_at, limits, ttl = ARGV[at] + 0, ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3], ARGV[at + 4]
  local name = KEYS[key]
  local _, _, cost = read(limits, NUMBERS, 0)
  local record = call('GET', name) or ''
  local new, fits, flag = record, false, '\1'
  if unused > 0 and record ~= '' then
    new = returned(record, limits, unused, taken_at)
  end
  if least > 0 then
    local before = new
    new, fits = decide(before, limits)
    if not fits and least < cost then
      new, fits = decide(before, with_cost(limits, least))
      flag = '\5'
    end
  end
  if new ~= record then
    call('SET', name, new, 'PX', ahead and 2 * ttl .. '' or ttl)
  end
  return (fits and flag or '\0') .. pack('>I8', now) .. new, at + 5
end

-- Change the leases of `many` subjects, each by itself.  A key that many of them share is read and written once.
local function change_leases(many, at, key, change)
  local before, after, ttls, order, flags = {}, {}, {}, {}, ''
  for index = 1, many do
    local name, limits, ttl, fits = KEYS[key + index - 1], ARGV[at], ARGV[at + 1], nil
    if not after[name] then
      order[#order + 1] = name
      before[name] = call('GET', name) or ''
      after[name] = before[name]
    end
    after[name], fits = change(after[name], limits)
    ttls[name] = ttl
    flags = flags .. (fits and '\1' or '\0')
    at = at + 2
  end
  for index = 1, #order do
    local name = order[index]
    if after[name] ~= before[name] then
      upkeep.save(name, LEASES, after[name], ttls[name])
    end
  end
  return flags .. pack('>I8', now), at, after[order[1]]
end

function upkeep.renew(many, at, key)
  local answer, next_at = change_leases(many, at, key, decide)
  return answer, next_at
end

function upkeep.end_leases(many, at, key)
  if not decide_lease then
    decide_lease, refund_lease, give_back_lease = make_leases()
  end
  local answer, next_at, record = change_leases(many, at, key, function(record, limits)
    local _, _, cost, _, _, noted_for, high, low = read(limits, NUMBERS, 0)
    return give_back_lease(record, now, cost, noted_for, high, low), true
  end)
  return many == 1 and answer .. without_notes(record) or answer, next_at
end

function upkeep.states(many, at, key)
  local records = {}
  for index = 1, many do
    local kind = string.byte(ARGV[at + index - 1])
    records[index] = shown(kind, upkeep.load(KEYS[key + index - 1], kind))
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

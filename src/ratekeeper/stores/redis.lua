-- The driver: all that touches the server is here.  The twins of the rules stand above it (see script.py), behind
-- rule(kind) -> decide, refund, and `now` is set: microseconds on the server's clock, read once.
--
-- ARGV is a list of plans, each  operation, number of subjects, subject...  and for a refund its instant `at` ('' is
-- now) after the number; `one` is a check of one subject, without the number.  A subject is one of KEYS and
--     kinds   a letter for each limit of the record that the key holds
--     cost, ttl (milliseconds)
--     limit   packed for its twin, one for each kind
--
-- A plan is decided whole, then written whole: all or nothing.  A refusal writes nothing, except a state that a clock
-- stepping back or a lowered limit left impossible.  Every write sets the key's time to live in the same step.
--
-- A reply is one string a plan: a byte for every subject (1: it fits, 2: its record is empty), now in I8, then the
-- records: the new ones if all was taken, else those that were found, mended if need be.  Where there are several
-- subjects, the length in I4 stands before each log; after other operations than check and peek, before each record.
--
-- Making a function costs the server as much as a few steps of deciding, so the common comes first, and what a call
-- does not need is never made.

local call, pack = redis.call, struct.pack

if ARGV[1] == 'one' and not ARGV[6] then -- one plan of one key and one limit
  local decide = rule(ARGV[2])
  local record = call('GET', KEYS[1]) or ''
  local new, allowed = decide(record, now, ARGV[5], ARGV[3] + 0)
  if new ~= record then
    call('SET', KEYS[1], new, 'PX', ARGV[4])
  end
  return pack('>BI8', allowed and 1 or 0, now) .. new
end

local rules = {}

-- The twin of several.py over one packed record, its limits from ARGV[at] on.
local function decide(record, kinds, at, cost)
  local decide_one = rules[kinds]
  if decide_one then
    return decide_one(record, now, ARGV[at], cost)
  elseif #kinds == 1 then
    decide_one = rule(kinds)
    rules[kinds] = decide_one
    return decide_one(record, now, ARGV[at], cost)
  end
  local before, after, allowed, from = '', '', true, 1
  for index = 1, #kinds do
    local kind, limit = string.sub(kinds, index, index), ARGV[at]
    local upto = from + (kind == 's' and 17 + 8 * string.byte(limit) or kind == 'f' and 16 or 12)
    local old = string.sub(record, from, upto - 1)
    decide_one = rules[kind]
    if not decide_one then
      decide_one = rule(kind)
      rules[kind] = decide_one
    end
    local new, fits = decide_one(old, now, limit, cost)
    if fits then
      before = before .. old
    else
      allowed, before = false, before .. new
    end
    after = after .. new
    at, from = at + 1, upto
  end
  return allowed and after or before, allowed
end

if ARGV[1] == 'one' and not ARGV[5 + #ARGV[2]] then -- one plan of one key
  local record = call('GET', KEYS[1]) or ''
  local new, allowed = decide(record, ARGV[2], 5, ARGV[3] + 0)
  if new ~= record then
    call('SET', KEYS[1], new, 'PX', ARGV[4])
  end
  return pack('>BI8', allowed and 1 or 0, now) .. new
end

-- Long logs, and all operations but check and peek: made when one is met.
--
-- A long log is a ring: >I3I3I3I7 capacity, head, size, newest, then slots of I7.
local function make_rest()
  local unpack = struct.unpack

  local function unroll(ring)
    if ring == '' then
      return ''
    end
    local capacity, head, size = unpack('>I3I3I3', ring)
    local upto = math.min(capacity, head + size)
    return string.sub(ring, 17 + head * 7, 16 + upto * 7) .. string.sub(ring, 17, 16 + (head + size - upto) * 7)
  end

  local function roll(log, capacity)
    local size = #log / 7
    capacity = math.max(size, capacity)
    return pack('>I3I3I3', capacity, 0, size) .. string.sub(log, -7) .. log .. string.rep('\0', (capacity - size) * 7)
  end

  -- The rule of sliding_log.lua without reading all of it: whether it fits, what a glimpse tells before and after,
  -- and the change to be made (see change).
  local function decide_ring(key, at, cost)
    local micros, count = unpack('>I8I4', ARGV[at])
    local capacity, head, size, newest = 0, 0, 0, 0
    local header = call('GETRANGE', key, '0', '15')
    if header ~= '' then
      capacity, head, size, newest = unpack('>I3I3I3I7', header)
    end
    local function slots(first, last) -- packed instants, the oldest is 0; never across the end of the ring
      -- `..` writes whole numbers below 10^14 as they are
      local from = 16 + (head + first) % capacity * 7
      return call('GETRANGE', key, from .. '', from + (last - first + 1) * 7 - 1 .. '')
    end
    if newest > now then -- the clock stepped back: rare, so read it all
      local log = unroll(call('GET', key))
      local new, fits = rule('w')(log, now, ARGV[at], cost)
      return fits, fits and log or new, new, {whole = new}
    end
    local oldest, gone = now - micros, 0
    if newest <= oldest then
      gone = size
    else
      local chunk = slots(0, math.min(16, size, capacity - head) - 1)
      local many = #chunk / 7
      while gone < many and unpack('>I7', chunk, gone * 7 + 1) <= oldest do
        gone = gone + 1
      end
      if gone == many then
        local high = size
        while gone < high do
          local middle = (gone + high - (gone + high) % 2) / 2
          if unpack('>I7', slots(middle, middle)) > oldest then high = middle else gone = middle + 1 end
        end
      end
    end
    local live = size - gone
    local excess = live + cost - count
    if excess > 0 then
      local blocking = cost <= count and unpack('>I7', slots(gone + excess - 1, gone + excess - 1)) or 0
      return false, pack('>I3I7I7', live, blocking, newest)
    end
    local change = {count = count, cost = cost, capacity = capacity, head = head, gone = gone, live = live}
    return true, pack('>I3I7I7', live, 0, live > 0 and newest or 0), pack('>I3I7I7', live + cost, 0, now), change
  end

  local function write_ring(key, ttl, change)
    if change.whole then
      call('SET', key, roll(change.whole, 0), 'PX', ttl)
      return
    end
    local cost, capacity, live = change.cost, change.capacity, change.live
    local stamp = pack('>I7', now)
    if live + cost > capacity then
      local log = string.sub(unroll(call('GET', key) or ''), change.gone * 7 + 1) .. string.rep(stamp, cost)
      call('SET', key, roll(log, math.min(change.count, 2 * (live + cost))), 'PX', ttl)
      return
    end
    local head = (change.head + change.gone) % capacity
    local slot = (head + live) % capacity
    local fits = math.min(cost, capacity - slot)
    call('SETRANGE', key, 16 + slot * 7 .. '', string.rep(stamp, fits))
    if cost > fits then
      call('SETRANGE', key, '16', string.rep(stamp, cost - fits))
    end
    call('SETRANGE', key, '0', pack('>I3I3I3', capacity, head, live + cost) .. stamp)
    call('PEXPIRE', key, ttl)
  end

  local function load(key, kinds)
    local found = call('GET', key) or ''
    return kinds == 'w' and unroll(found) or found
  end

  local function save(key, kinds, record, ttl)
    if record == '' then
      call('DEL', key)
    else
      call('SET', key, kinds == 'w' and roll(record, 0) or record, 'PX', ttl)
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
  local function take(many, at, key)
    local subjects, low, high = {}, 0, 0
    for index = 1, many do
      local kinds = ARGV[at]
      subjects[index] = {key = KEYS[key], kinds = kinds, ttl = ARGV[at + 2], at = at + 3, record = load(KEYS[key], kinds)}
      high = ARGV[at + 1] + 0
      at, key = at + 3 + #kinds, key + 1
    end
    local function fit(cost)
      for index = 1, many do
        local subject = subjects[index]
        local new, fits = decide(subject.record, subject.kinds, subject.at, cost)
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
    local records = {}
    local takes = low > 0 and fit(low)
    for index = 1, many do
      local subject = subjects[index]
      if takes then
        save(subject.key, subject.kinds, subject.new, subject.ttl)
      end
      records[index] = takes and subject.new or subject.record
    end
    return reply(records), at, key
  end

  local function refund(many, at, key)
    local taken_at = ARGV[at] == '' and now or ARGV[at] + 0
    local records = {}
    at = at + 1
    for index = 1, many do
      local kinds, cost, ttl = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2]
      local record = load(KEYS[key], kinds)
      local parts, from = {}, 1
      at = at + 3
      for part = 1, #kinds do
        local kind, size = string.sub(kinds, part, part), #record
        if #kinds > 1 then
          size = kind == 's' and 17 + 8 * string.byte(ARGV[at]) or kind == 'f' and 16 or 12
        end
        local _, give = rule(kind)
        local new = give(string.sub(record, from, from + size - 1), now, ARGV[at], cost, taken_at)
        parts[part] = new == '' and #kinds > 1 and string.rep('\0', size) or new
        at, from = at + 1, from + size
      end
      records[index] = table.concat(parts)
      if records[index] ~= record then
        save(KEYS[key], kinds, records[index], ttl)
      end
      key = key + 1
    end
    return reply(records), at, key
  end

  -- reset forgets the records, states tells them; neither needs the limits, so a subject is just its kinds.
  local function visit(operation, many, at, key)
    local records = {}
    for index = 1, many do
      records[index] = ''
      if operation == 'reset' then
        call('DEL', KEYS[key])
      else
        records[index] = load(KEYS[key], ARGV[at])
      end
      at, key = at + 1, key + 1
    end
    return reply(records), at, key
  end

  local function answer(operation, many, at, key)
    if operation == 'take' then
      return take(many, at, key)
    elseif operation == 'refund' then
      return refund(many, at, key)
    end
    return visit(operation, many, at, key)
  end

  return {decide_ring = decide_ring, write_ring = write_ring, load = load, save = save, answer = answer}
end

local rest

-- check and peek: a plan of `many` subjects from ARGV[at] and KEYS[key] on; the reply, and where the next one starts.
local function decide_plan(operation, many, at, key)
  local held, found, changed = {}, {}, {}
  local flags, allowed, mended = '', true, nil
  local first_at, first_key = at, key
  for index = 1, many do
    local name, kinds, cost = KEYS[key], ARGV[at], ARGV[at + 1] + 0
    local fits
    if kinds == 'r' then
      rest = rest or make_rest()
      fits, found[index], changed[index], held[index] = rest.decide_ring(name, at + 3, cost)
      if not fits and held[index] then
        mended = mended or {}
        mended[index] = true
      end
    else
      local record, new = held[name], nil
      if not record then
        if kinds == 'w' then
          rest = rest or make_rest()
          record = rest.load(name, kinds)
        else
          record = call('GET', name) or ''
        end
      end
      new, fits = decide(record, kinds, at + 3, cost)
      -- A state that was mended is written on a refusal too, unless an earlier subject of this plan changed it.
      if not fits and new ~= record and not held[name] then
        mended = mended or {}
        mended[index] = true
      end
      found[index], changed[index], held[name] = fits and record or new, new, new
    end
    local flag = found[index] == '' and 2 or 0
    if fits then flag = flag + 1 else allowed = false end
    flags = flags .. string.char(flag)
    at, key = at + 3 + #kinds, key + 1
  end
  local taken = allowed and operation == 'check'
  local records = taken and changed or found
  if taken then
    flags = string.rep('\1', many)
  end
  local from = first_at
  for index = 1, many do
    local kinds = ARGV[from]
    if taken or mended and mended[index] and operation == 'check' then
      local name, ttl = KEYS[first_key + index - 1], ARGV[from + 2]
      if kinds == 'r' then
        rest.write_ring(name, ttl, held[index])
      elseif kinds == 'w' then
        rest.save(name, kinds, changed[index], ttl)
      else
        call('SET', name, changed[index], 'PX', ttl)
      end
    end
    if many > 1 and (kinds == 'd' or kinds == 'w' or kinds == 'r') then
      records[index] = pack('>I4', #records[index]) .. records[index]
    end
    from = from + 3 + #kinds
  end
  return flags .. pack('>I8', now) .. table.concat(records), at, key
end

local replies, many_replies, at, key = {}, 0, 1, 1
repeat
  local operation = ARGV[at]
  many_replies = many_replies + 1
  if operation == 'one' then
    local kinds = ARGV[at + 1]
    local record = call('GET', KEYS[key]) or ''
    local new, allowed = decide(record, kinds, at + 4, ARGV[at + 2] + 0)
    if new ~= record then
      call('SET', KEYS[key], new, 'PX', ARGV[at + 3])
    end
    replies[many_replies] = pack('>BI8', allowed and 1 or 0, now) .. new
    at, key = at + 4 + #kinds, key + 1
  elseif operation == 'check' or operation == 'peek' then
    replies[many_replies], at, key = decide_plan(operation, ARGV[at + 1] + 0, at + 2, key)
  else
    rest = rest or make_rest()
    replies[many_replies], at, key = rest.answer(operation, ARGV[at + 1] + 0, at + 2, key)
  end
until not ARGV[at]
return many_replies == 1 and replies[1] or replies

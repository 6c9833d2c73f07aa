-- The driver: all that touches the server is here.  The twins of the rules stand above it (see script.py), behind
-- rule(kind) -> decide, refund, and `now` is set: microseconds on the server's clock, read once.
--
-- ARGV is a list of plans, each  operation, number of subjects, subject...  and for a refund its instant `at` ('' is
-- now) after the number.  A check of one subject is  one, subject;  many such that differ in nothing but their key are
-- each, their number, subject.  A check of several is  all  if no key stands in it twice and none is a log.
-- A subject is one of KEYS and
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

local call, pack, values, sub, KEYS, ARGV = redis.call, struct.pack, unpack, string.sub, KEYS, ARGV

if ARGV[1] == 'one' and not ARGV[6] and ARGV[2] ~= 'r' then -- one plan of one key and one limit
  local decide = rule(ARGV[2])
  local record = call('GET', KEYS[1]) or ''
  local new, allowed = decide(record, now, ARGV[5], ARGV[3] + 0)
  if new ~= record then
    call('SET', KEYS[1], new, 'PX', ARGV[4])
  end
  return pack('>BI8', allowed and 1 or 0, now) .. new
end

local made_kind, made -- the twin that was needed last: most calls need but one

-- The twin of several.py over one packed record, its limits from ARGV[at] on.
local function decide(record, kinds, at, cost)
  if kinds == made_kind then
    return made(record, now, ARGV[at], cost)
  end
  local many = #kinds
  local before, after, from = nil, '', 1
  for index = 1, many do
    local kind, limit = sub(kinds, index, index), ARGV[at]
    if kind ~= made_kind then
      made_kind, made = kind, rule(kind)
    end
    local new, fits = made(record, now, limit, cost, from)
    if many == 1 then
      return new, fits
    elseif fits then
      if before then
        before = before .. sub(record, from, from + #new - 1)
      else
        after = index == 1 and new or after .. new
      end
      from = from + #new
    else
      before = before or sub(record, 1, from - 1)
      local upto = from + (kind == 's' and 17 + 8 * string.byte(limit) or kind == 'f' and 16 or 12)
      before = before .. (new == record and sub(record, from, upto - 1) or new)
      from = upto
    end
    at = at + 1
  end
  return before or after, not before
end

if ARGV[1] == 'one' and ARGV[2] ~= 'r' and not ARGV[5 + #ARGV[2]] then -- one plan of one key
  local record = call('GET', KEYS[1]) or ''
  local new, allowed = decide(record, ARGV[2], 5, ARGV[3] + 0)
  if new ~= record then
    call('SET', KEYS[1], new, 'PX', ARGV[4])
  end
  return pack('>BI8', allowed and 1 or 0, now) .. new
end

-- A long log is a ring, changed in place: >I3I3I3I7I7BBB capacity, head, size, newest, the instant until which the
-- server keeps it, how many stand in the back, and from where to where the front is live; back, front, then slots of
-- I7.  The back has the newest, until it is full and goes to the ring; the front has a copy of the oldest: together
-- they spare most calls a second read and a second write.  The server is told to keep a ring twice as long as it must,
-- and again only when that is used up.
local function make_ring()
  local unpack = struct.unpack
  local BACK, FRONT, START, LAST = 26, 68, 110, '109' -- where each starts, and the end of what is always read
  local MOST = 6 -- in the back, and in the front

  local function unroll(ring)
    if ring == '' then
      return ''
    end
    local capacity, head, size, _, _, backs = unpack('>I3I3I3I7I7B', ring)
    local upto = math.min(capacity, head + size)
    return sub(ring, START + 1 + head * 7, START + upto * 7)
      .. sub(ring, START + 1, START + (head + size - upto) * 7)
      .. sub(ring, BACK + 1, BACK + backs * 7)
  end

  local function save_ring(key, log, capacity, ttl)
    local size = #log / 7
    capacity = math.max(size, capacity)
    local front = sub(log, 1, MOST * 7)
    local ring = pack('>I3I3I3', capacity, 0, size) .. sub(log, -7) .. pack('>I7BBB', now + 2000 * ttl, 0, 0, #front / 7)
    ring = ring .. string.rep('\0', FRONT - BACK) .. front .. string.rep('\0', MOST * 7 - #front) .. log
    -- `..` writes whole numbers below 10^14 as they are
    call('SET', key, ring .. string.rep('\0', (capacity - size) * 7), 'PX', 2 * ttl .. '')
  end

  -- A front that is given replaces the one that is there.
  local function write_ring(key, ttl, count, cost, live, gone, capacity, head, size, kept, back, first, last, front)
    local stamp = pack('>I7', now)
    if live + cost > capacity then
      local log = sub(unroll(call('GET', key) or ''), gone * 7 + 1) .. string.rep(stamp, cost)
      return save_ring(key, log, math.min(count, 2 * (live + cost)), ttl)
    end
    if gone > size then
      head, size, back = 0, 0, sub(back, (gone - size) * 7 + 1)
    else
      head, size = (head + gone) % capacity, size - gone
    end
    back = back .. (cost == 1 and stamp or string.rep(stamp, cost))
    if #back > MOST * 7 then
      local slot = (head + size) % capacity
      local fits = (capacity - slot) * 7
      call('SETRANGE', key, START + slot * 7 .. '', sub(back, 1, fits))
      if #back > fits then
        call('SETRANGE', key, START .. '', sub(back, fits + 1))
      end
      size, back = size + #back / 7, ''
    end
    if kept < now + 1000 * ttl then
      kept = now + 2000 * ttl
      call('PEXPIRE', key, 2 * ttl .. '')
    end
    local header = pack('>I3I3I3I7I7BBB', capacity, head, size, now, kept, #back / 7, first, last) .. back
    if front then
      header = header .. string.rep('\0', MOST * 7 - #back) .. front
    end
    call('SETRANGE', key, '0', header)
  end

  -- The rule of sliding_log.lua without reading all of it: whether it fits, and what a glimpse tells before and after.
  -- With a `ttl` the change is made at once, else returned.
  local function decide_ring(key, at, cost, ttl)
    local micros, count = unpack('>I8I4', ARGV[at])
    local capacity, head, size, newest, kept, backs, first, last = 0, 0, 0, 0, 0, 0, 0, 0
    local header = call('GETRANGE', key, '0', LAST)
    if header ~= '' then
      capacity, head, size, newest, kept, backs, first, last = unpack('>I3I3I3I7I7BBB', header)
    end
    if newest > now then -- the clock stepped back: rare, so read it all
      local log = unroll(call('GET', key))
      local new, fits = rule('w')(log, now, ARGV[at], cost)
      if ttl then
        save_ring(key, new, 0, ttl)
      end
      return fits, fits and log or new, new, {whole = new}
    end
    local function instants(from, many) -- packed, the oldest is 0; at least one, and up to `many`
      if from >= size then
        return sub(header, BACK + 1 + (from - size) * 7, BACK + backs * 7)
      end
      local slot = (head + from) % capacity
      many = math.min(many, size - from, capacity - slot)
      return call('GETRANGE', key, START + slot * 7 .. '', START + (slot + many) * 7 - 1 .. '')
    end
    local oldest, gone, front = now - micros, 0, nil
    if newest <= oldest or header == '' then
      gone, first, last = size + backs, 0, 0
    else
      while first < last and unpack('>I7', header, FRONT + 1 + first * 7) <= oldest do
        first, gone = first + 1, gone + 1
      end
      if first == last then
        front = instants(gone, MOST)
        if unpack('>I7', front, #front - 6) <= oldest then
          local high = size + backs
          gone = gone + #front / 7
          while gone < high do
            local middle = (gone + high - (gone + high) % 2) / 2
            if unpack('>I7', instants(middle, 1)) > oldest then high = middle else gone = middle + 1 end
          end
          front = instants(gone, MOST)
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
        blocking = unpack('>I7', front or sub(header, FRONT + 1), (first + excess - 1) * 7 + 1)
      else
        blocking = unpack('>I7', instants(gone + excess - 1, 1))
      end
      return false, pack('>I3I7I7', live, blocking, newest)
    end
    local after = pack('>I3I7I7', live + cost, 0, now)
    local back = sub(header, BACK + 1, BACK + backs * 7)
    if ttl then
      write_ring(key, ttl, count, cost, live, gone, capacity, head, size, kept, back, first, last, front)
      return true, '', after
    end
    local before = pack('>I3I7I7', live, 0, live > 0 and newest or 0)
    return true, before, after, {count, cost, live, gone, capacity, head, size, kept, back, first, last, front}
  end

  local function change_ring(key, ttl, change)
    if change.whole then
      save_ring(key, change.whole, 0, ttl)
    else
      write_ring(key, ttl, values(change))
    end
  end

  return decide_ring, change_ring, save_ring, unroll
end

if ARGV[1] == 'one' and ARGV[2] == 'r' and not ARGV[6] then -- one plan of one long log
  local decide_ring = make_ring()
  local allowed, before, after = decide_ring(KEYS[1], 5, ARGV[3] + 0, ARGV[4])
  return pack('>BI8', allowed and 1 or 0, now) .. (allowed and after or before)
end

-- all: decides subject after subject on the way in and writes on the way out, so it needs no table in between.
-- Returns whether all fit, their flags and records, and where the next plan starts.
local function decide_all(left, at, key, allowed)
  local kinds, ttl = ARGV[at], ARGV[at + 2]
  local record = call('GET', KEYS[key]) or ''
  local new, fits = decide(record, kinds, at + 3, ARGV[at + 1] + 0)
  local flags, records, after = '', '', at + 3 + #kinds
  allowed = allowed and fits
  if left > 1 then
    allowed, flags, records, after = decide_all(left - 1, after, key + 1, allowed)
  end
  if allowed then
    call('SET', KEYS[key], new, 'PX', ttl)
    return true, '\1' .. flags, new .. records, after
  elseif fits then
    return false, (record == '' and '\3' or '\1') .. flags, record .. records, after
  elseif new ~= record then
    call('SET', KEYS[key], new, 'PX', ttl)
  end
  return false, (new == '' and '\2' or '\0') .. flags, new .. records, after
end

-- All operations but check and peek: made when one is met.
local function make_rest()
  local _, _, save_ring, unroll = make_ring()

  local function load(key, kinds)
    local found = call('GET', key) or ''
    return kinds == 'w' and unroll(found) or found
  end

  local function save(key, kinds, record, ttl)
    if record == '' then
      call('DEL', key)
    elseif kinds == 'w' then
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
        local kind, size = sub(kinds, part, part), #record
        if #kinds > 1 then
          size = kind == 's' and 17 + 8 * string.byte(ARGV[at]) or kind == 'f' and 16 or 12
        end
        local _, give = rule(kind)
        local new = give(sub(record, from, from + size - 1), now, ARGV[at], cost, taken_at)
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

  return {load = load, save = save, answer = answer}
end

local rest, decide_ring, change_ring

-- check and peek: a plan of `many` subjects from ARGV[at] and KEYS[key] on; the reply, and where the next one starts.
local function decide_plan(operation, many, at, key)
  local held, found, changed = {}, {}, {}
  local flags, allowed, mended = '', true, nil
  local first_at, first_key = at, key
  for index = 1, many do
    local name, kinds, cost = KEYS[key], ARGV[at], ARGV[at + 1] + 0
    local fits
    if kinds == 'r' then
      if not decide_ring then
        decide_ring, change_ring = make_ring()
      end
      fits, found[index], changed[index], held[index] = decide_ring(name, at + 3, cost)
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
        change_ring(name, ttl, held[index])
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

-- one and each: plans of a subject each, alike but for the key; where their limits start.  Adds a reply for each.
local replies, many_replies = {}, 0
local function decide_each(many, at, key)
  local kinds, cost, ttl = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2]
  local yes, no = pack('>BI8', 1, now), pack('>BI8', 0, now)
  if kinds == 'r' and not decide_ring then
    decide_ring, change_ring = make_ring()
  end
  for index = many_replies + 1, many_replies + many do
    local new, allowed
    if kinds == 'r' then
      local before, after
      allowed, before, after = decide_ring(KEYS[key], at + 3, cost, ttl)
      new = allowed and after or before
    else
      local record = call('GET', KEYS[key]) or ''
      new, allowed = decide(record, kinds, at + 3, cost)
      if new ~= record then
        call('SET', KEYS[key], new, 'PX', ttl)
      end
    end
    replies[index] = (allowed and yes or no) .. new
    key = key + 1
  end
  many_replies = many_replies + many
  return at + 3 + #kinds, key
end

local at, key = 1, 1
repeat
  local operation, many = ARGV[at], ARGV[at + 1]
  if operation == 'one' then
    at, key = decide_each(1, at + 1, key)
  elseif operation == 'each' then
    at, key = decide_each(many + 0, at + 2, key)
  else
    many_replies = many_replies + 1
    if operation == 'all' then
      local _, flags, records, after = decide_all(many + 0, at + 2, key, true)
      replies[many_replies], at, key = flags .. pack('>I8', now) .. records, after, key + many
    elseif operation == 'check' or operation == 'peek' then
      replies[many_replies], at, key = decide_plan(operation, many + 0, at + 2, key)
    else
      rest = rest or make_rest()
      replies[many_replies], at, key = rest.answer(operation, many + 0, at + 2, key)
    end
  end
until not ARGV[at]
return many_replies == 1 and replies[1] or replies

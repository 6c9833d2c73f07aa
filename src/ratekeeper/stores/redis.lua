-- The driver: all that touches the server is here.  The twins of the rules stand above it (see script.py), behind
-- rule(kind) -> decide, refund, and `now` is set: microseconds on the server's clock, read once.
--
-- ARGV is a list of plans, each  operation, number of subjects, subject...  and for a refund its instant `at` ('' is
-- now) after the number.  A subject is one of KEYS and
--     kinds   a letter for each limit of the record that the key holds
--     cost, ttl (milliseconds)
--     limit   packed for its twin; where there are several, the size of its state stands before each
--
-- A plan is decided whole, then written whole: all or nothing.  A refusal writes nothing, except a state that a clock
-- stepping back or a lowered limit left impossible.  Every write sets the key's time to live in the same step.
--
-- A reply is one string a plan: a byte for every subject that says whether it fits, now in I8, then the records: the
-- new ones if all was taken, else those that were found, mended if need be.  Where there are several, the length in I4
-- stands before each.

local call, pack = redis.call, struct.pack
local rules = {}

-- All but the common plan.  Its functions are made when one of them is needed: at every call would cost too much.
local function general()
  local function decider(kind)
    local found = rules[kind]
    if not found then
      found = rule(kind)
      rules[kind] = found
    end
    return found
  end

  -- A long log is a ring: >I3I3I3 capacity, head, size, then slots of I7.  These two read and write one whole.
  local function unroll(ring)
    if ring == '' then
      return ''
    end
    local capacity, head, size = struct.unpack('>I3I3I3', ring)
    local upto = math.min(capacity, head + size)
    return string.sub(ring, 10 + head * 7, 9 + upto * 7) .. string.sub(ring, 10, 9 + (head + size - upto) * 7)
  end

  local function roll(log, capacity)
    local size = #log / 7
    capacity = math.max(size, capacity)
    return pack('>I3I3I3', capacity, 0, size) .. log .. string.rep('\0', (capacity - size) * 7)
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

  -- The twin of several.py over one packed record.
  local function decide_several(record, kinds, at, cost)
    local before, after, allowed, from = {}, {}, true, 1
    for index = 1, #kinds do
      local size = ARGV[at] + 0
      local old = string.sub(record, from, from + size - 1)
      local new, fits = decider(string.sub(kinds, index, index))(old, now, ARGV[at + 1], cost)
      before[index], after[index] = old, new
      if not fits then
        allowed, before[index] = false, new
      end
      at, from = at + 2, from + size
    end
    return table.concat(allowed and after or before), allowed
  end

  local function decide(record, kinds, at, cost)
    if #kinds == 1 then
      return decider(kinds)(record, now, ARGV[at], cost)
    end
    return decide_several(record, kinds, at, cost)
  end

  local function refund(record, kinds, at, cost, taken_at)
    if #kinds == 1 then
      local _, give = rule(kinds)
      return give(record, now, ARGV[at], cost, taken_at)
    end
    local after, from = {}, 1
    for index = 1, #kinds do
      local size = ARGV[at] + 0
      local _, give = rule(string.sub(kinds, index, index))
      local new = give(string.sub(record, from, from + size - 1), now, ARGV[at + 1], cost, taken_at)
      after[index] = new == '' and string.rep('\0', size) or new
      at, from = at + 2, from + size
    end
    return table.concat(after)
  end

  -- The rule of sliding_log.lua on a ring, without reading it all.  Found and changed are what glimpse() tells of;
  -- changed.write() is for later.
  local function decide_ring(key, at, cost, ttl)
    local micros, count = struct.unpack('>I8I4', ARGV[at])
    local capacity, head, size = 0, 0, 0
    local header = call('GETRANGE', key, '0', '8')
    if header ~= '' then
      capacity, head, size = struct.unpack('>I3I3I3', header)
    end
    local function slots(first, last) -- packed instants, from the oldest = 0; never across the end of the ring
      local from = 9 + (head + first) % capacity * 7
      return call('GETRANGE', key, string.format('%d', from), string.format('%d', from + (last - first + 1) * 7 - 1))
    end
    local function instant(index)
      return (struct.unpack('>I7', slots(index, index)))
    end
    local newest = size > 0 and instant(size - 1) or 0
    if newest > now then -- the clock stepped back: rare, so read it all
      local log = load(key, 'w')
      local new, allowed = decider('w')(log, now, ARGV[at], cost)
      return new, allowed, log, function() save(key, 'w', new, ttl) end
    end
    local oldest = now - micros
    local gone = 0
    if newest <= oldest then
      gone = size
    elseif size > 0 then
      local chunk = slots(0, math.min(16, size, capacity - head) - 1)
      local many = #chunk / 7
      while gone < many and struct.unpack('>I7', chunk, gone * 7 + 1) <= oldest do
        gone = gone + 1
      end
      if gone == many then
        local high = size
        while gone < high do
          local middle = (gone + high - (gone + high) % 2) / 2
          if instant(middle) > oldest then high = middle else gone = middle + 1 end
        end
      end
    end
    local live = size - gone
    local excess = live + cost - count
    if excess > 0 then
      local blocking = cost <= count and instant(gone + excess - 1) or 0
      local glimpse = pack('>I3I7I7', live, blocking, newest)
      return glimpse, false, glimpse
    end
    local function write()
      if live + cost > capacity then
        local log = string.sub(load(key, 'w'), gone * 7 + 1) .. string.rep(pack('>I7', now), cost)
        call('SET', key, roll(log, math.min(count, 2 * (live + cost))), 'PX', ttl)
        return
      end
      head = (head + gone) % capacity
      local slot = (head + live) % capacity
      local fits = math.min(cost, capacity - slot)
      local stamp = pack('>I7', now)
      call('SETRANGE', key, string.format('%d', 9 + slot * 7), string.rep(stamp, fits))
      if cost > fits then
        call('SETRANGE', key, '9', string.rep(stamp, cost - fits))
      end
      call('SETRANGE', key, '0', pack('>I3I3I3', capacity, head, live + cost))
      call('PEXPIRE', key, ttl)
    end
    return pack('>I3I7I7', live + cost, 0, now), true, pack('>I3I7I7', live, 0, live > 0 and newest or 0), write
  end

  -- One plan from ARGV[at] on, its keys from KEYS[key] on; returns the reply and where the next plan starts.
  local function decide_plan(operation, many, at, key)
    local held, found, changed, flags, writes = {}, {}, {}, {}, {}
    local allowed = true
    for index = 1, many do
      local name, kinds, cost, ttl = KEYS[key], ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2]
      local record, fits
      if kinds == 'r' then
        local write
        changed[index], fits, found[index], write = decide_ring(name, at + 3, cost, ttl)
        writes[index] = {fits, write}
      else
        record = held[name] or load(name, kinds)
        local new
        new, fits = decide(record, kinds, at + 3, cost)
        -- A state that was mended is written on a refusal too, unless an earlier subject of this plan changed it.
        if fits or new ~= record and not held[name] then
          writes[index] = {fits, function() save(name, kinds, new, ttl) end}
        end
        found[index], changed[index], held[name] = fits and record or new, new, new
      end
      flags[index] = fits and '\1' or '\0'
      allowed = allowed and fits
      at, key = at + 3 + (#kinds == 1 and 1 or 2 * #kinds), key + 1
    end
    local taken = allowed and operation == 'check'
    if operation == 'check' then
      for index = 1, many do
        local write = writes[index]
        if write and write[2] and write[1] == taken then
          write[2]()
        end
      end
    end
    local records = taken and changed or found
    if many > 1 then
      for index = 1, many do
        records[index] = pack('>I4', #records[index]) .. records[index]
      end
    end
    return table.concat(flags) .. pack('>I8', now) .. table.concat(records), at, key
  end

  -- The largest cost that every subject admits, up to the one that was asked for: found by halving.
  local function take_plan(many, at, key)
    local subjects = {}
    local low, high = 0, nil
    for index = 1, many do
      local kinds = ARGV[at]
      subjects[index] = {key = KEYS[key], kinds = kinds, ttl = ARGV[at + 2], at = at + 3}
      subjects[index].record = load(KEYS[key], kinds)
      high = ARGV[at + 1] + 0
      at, key = at + 3 + (#kinds == 1 and 1 or 2 * #kinds), key + 1
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
    if low > 0 then
      fit(low)
    end
    for index = 1, many do
      local subject = subjects[index]
      if low > 0 then
        save(subject.key, subject.kinds, subject.new, subject.ttl)
        subject.record = subject.new
      end
      records[index] = many > 1 and pack('>I4', #subject.record) .. subject.record or subject.record
    end
    return string.rep('\1', many) .. pack('>I8', now) .. table.concat(records), at, key
  end

  local function refund_plan(many, at, key)
    local taken_at = ARGV[at] == '' and now or ARGV[at] + 0
    local records = {}
    at = at + 1
    for index = 1, many do
      local name, kinds = KEYS[key], ARGV[at]
      local record = load(name, kinds)
      local new = refund(record, kinds, at + 3, ARGV[at + 1] + 0, taken_at)
      if new ~= record then
        save(name, kinds, new, ARGV[at + 2])
      end
      records[index] = many > 1 and pack('>I4', #new) .. new or new
      at, key = at + 3 + (#kinds == 1 and 1 or 2 * #kinds), key + 1
    end
    return string.rep('\1', many) .. pack('>I8', now) .. table.concat(records), at, key
  end

  -- reset forgets the records; states tells them.  Neither needs the limits: subjects are just kinds.
  local function visit_plan(operation, many, at, key)
    local records = {}
    for index = 1, many do
      local record = ''
      if operation == 'reset' then
        call('DEL', KEYS[key])
      else
        record = load(KEYS[key], ARGV[at])
      end
      records[index] = many > 1 and pack('>I4', #record) .. record or record
      at, key = at + 1, key + 1
    end
    return string.rep('\1', many) .. pack('>I8', now) .. table.concat(records), at, key
  end

  return function(operation, many, at, key)
    if operation == 'check' or operation == 'peek' then
      return decide_plan(operation, many, at, key)
    elseif operation == 'take' then
      return take_plan(many, at, key)
    elseif operation == 'refund' then
      return refund_plan(many, at, key)
    end
    return visit_plan(operation, many, at, key)
  end
end

local replies, at, key, answer = {}, 1, 1, nil
repeat
  local operation, many, kinds = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if operation == 'check' and many == '1' and #kinds == 1 and kinds ~= 'r' then
    -- The common plan: one key, one limit.
    local decide = rules[kinds]
    if not decide then
      decide = rule(kinds)
      rules[kinds] = decide
    end
    local name = KEYS[key]
    local record = call('GET', name) or ''
    local new, allowed = decide(record, now, ARGV[at + 5], ARGV[at + 3] + 0)
    if new ~= record then
      call('SET', name, new, 'PX', ARGV[at + 4])
    end
    replies[#replies + 1] = pack('>BI8', allowed and 1 or 0, now) .. new
    at, key = at + 6, key + 1
  else
    answer = answer or general()
    replies[#replies + 1], at, key = answer(operation, many + 0, at + 2, key)
  end
until not ARGV[at]
return #replies == 1 and replies[1] or replies

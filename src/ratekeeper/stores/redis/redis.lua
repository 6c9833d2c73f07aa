-- The driver: reads the arguments and the records, decides, writes and replies.  Only this file and those that it
-- includes (ring*.lua, upkeep.lua) call the server.  script.py composes them, and says why some lines look as they
-- do.
--
-- ARGV is one subject, which is the most common call, or a list of plans:
--     one                        subject     one key is checked
--     each    number             subject     the same for so many keys, each a plan of its own
--     all     number             subject...  checked all or nothing; no key twice, no log
--     plans   plans, number      subject...  the same for so many plans that differ only in their keys
--     check   sizes              subject...  as all, for any keys; one byte for each check is its number of subjects
--     peek    sizes              subject...  as check, but nothing is taken
--     take    number             subject...  as much of the cost as fits
--     debit   number             subject...  all of the cost, though less is left
--     refund  number, taken_at   subject...  taken_at in microseconds; '' is now
--     charge  number             subject...  as take, for each limit by itself, and its own cost
--     prefetch  1, least, unused, taken_at  subject  see upkeep.lua
--     renew   number             subject...  leases, each held by itself; the reply has no records
--     end_leases number          subject...  leases; the reply has the record of a single one
--     states, reset  number      kind...
-- A subject is one of KEYS, in their order, and two words:
--     limits  seven numbers in msgpack for each limit, in the order of their states in the key's record: its kind, the
--             cost, and the numbers of the limit, as its twin names them.  (Nothing reads numbers faster than msgpack.)
--     ttl     milliseconds
--
-- A plan is decided completely before it is written: all or nothing.  A refusal writes nothing, except a state that was
-- left impossible by a clock that stepped back or by a lowered limit.  Every write sets the key's time to live.
--
-- A record is the states of its limits.  It begins (a log: ends) with the instant at which it was made, in I7.  The
-- first state of a bucket does not contain that instant, so it stands before it in I8.  So a reply need only be the
-- new record: making and joining strings takes as long as deciding.  Leases are always asked for by check: a reply has
-- their record without its notes.
--
-- A reply is one string for each plan.  To `one`, `each`, `all` and `plans`, if the cost was taken: the new records.
-- If it was refused: -1 - now in i8, a negative number; for `all` and `plans` a byte for every subject (1: it fits,
-- 2: its record is empty); the records that were read, repaired if need be.  If it was taken with a record from after
-- now: the same with AHEAD and now in I7 in the place of the number.  To other operations: those bytes, now in
-- I8, the records; if there are several subjects, the length in I4 stands before each log, and before each record if
-- the operation is neither check nor peek.
--
-- Making a function takes the server as long as a step of deciding.  So the common cases come first, and functions
-- that a call does not need are never made: that is why they stand between the cases instead of above them, and why
-- some text is included more than once, above all `decide`, the bodies of the twins (see script.py).

local call = redis.call
-- Microseconds, read once: `now`.
-- include now

local NUMBERS = 7 -- of a limit
local BUCKET = 103 -- g; a letter's code, as are these
local LOG = 100 -- d
local LEASES = 99 -- c
local LONG_LOG = 114 -- r: in a ring, changed in place
local WHOLE_LOG = 119 -- w: the same, read and written as a whole
local HEADER = '>I3I3I3I7I7BBB' -- of a ring, see ring.lua
local MOST = 6 -- instants in its back, and in its front
local BACK = 26 -- bytes before the back
local FRONT = BACK + 7 * MOST
local RING = FRONT + 7 * MOST
local LAST = '109' -- the last byte before the ring
local pack, unpack, values, read = struct.pack, struct.unpack, unpack, cmsgpack.unpack_limit
local KEYS, ARGV = KEYS, ARGV
local AHEAD = 128 -- the first byte of such a reply
local ahead = false -- set by a twin that uses a state from after now: the record does not contain now, and is kept longer

-- Case 1, the most common: one key.
if not ARGV[3] then
  local limits = ARGV[1]
  local at, kind, cost, a, b, c, d, e = read(limits, NUMBERS, 0) -- `at` is where the next one starts, or -1
  if kind == LONG_LOG then
    local key, ttl, micros, count = KEYS[1], ARGV[2], a, b
    -- include ring.lua
    if allowed and ahead then
      return pack('>BI7c0', AHEAD, now, after)
    end
    return allowed and after or pack('>i8c0', -1 - now, before)
  end
  local record, ttl = call('GET', KEYS[1]) or '', ARGV[2]
  -- include several.lua
  if new ~= record then
    call('SET', KEYS[1], new, 'PX', ahead and 2 * ttl .. '' or ttl)
  end
  if fits and ahead then
    return pack('>BI7c0', AHEAD, now, new)
  end
  return fits and new or pack('>i8c0', -1 - now, new)
end

-- all: decides one subject after the other on the way in, and writes on the way out, so that it needs no table.
-- Returns whether all fit, the flags if not, and the records.
local function decide_all(left, word, key, all_fit)
  local limits, ttl = ARGV[word], ARGV[word + 1]
  local record = call('GET', KEYS[key]) or ''
  local at, kind, cost, a, b, c, d, e = read(limits, NUMBERS, 0)
  -- include several.lua
  local flags, records = '', ''
  all_fit = all_fit and fits
  if left > 1 then
    all_fit, flags, records = decide_all(left - 1, word + 2, key + 1, all_fit)
  end
  if all_fit then
    call('SET', KEYS[key], new, 'PX', ahead and 2 * ttl .. '' or ttl)
    return true, flags, new .. records
  elseif fits then
    return false, (record == '' and '\3' or '\1') .. flags, record .. records
  elseif new ~= record then
    call('SET', KEYS[key], new, 'PX', ahead and 2 * ttl .. '' or ttl)
  end
  return false, (new == '' and '\2' or '\0') .. flags, new .. records
end

-- Case 2: one plan of several keys.
if ARGV[1] == 'all' and not ARGV[3 + 2 * ARGV[2]] then
  local allowed, flags, records = decide_all(ARGV[2] + 0, 3, 1, true)
  if allowed and ahead then
    return pack('>BI7', AHEAD, now) .. string.rep('\1', ARGV[2]) .. records
  end
  return allowed and records or pack('>i8', -1 - now) .. flags .. records
end

-- Case 3: any plans.
local decide_ring, change_ring, upkeep -- made by the first call that needs them

local function make_ring()
  local function decide_ring(key, ttl, cost, micros, count)
    -- include ring.lua
    return allowed, before, after, change
  end

  local function change_ring(key, ttl, change)
    if change.whole then
      -- include ring_whole.lua
      save_ring(key, change.whole, 0, ttl)
    else
      local sub = string.sub
      local count, cost, live, gone, capacity, head, size, kept, back, first, last, front = values(change, 1, 12)
      -- include ring_write.lua
    end
  end

  return decide_ring, change_ring
end

local decide_lease, refund_lease, give_back_lease -- the same

local function make_leases()
  -- include leases
end

-- What a reply has of a record of leases: all but its notes.
local function without_notes(record)
  return string.sub(record, 2 + 15 * (string.byte(record) or 0))
end

-- The new record of a key with one limit or several, and whether all of them fit.
local function decide(record, limits)
  local at, kind, cost, a, b, c, d, e = read(limits, NUMBERS, 0)
  if kind == LEASES then
    if not decide_lease then
      decide_lease, refund_lease, give_back_lease = make_leases()
    end
    return decide_lease(record, 1, now, cost, a, b, c, d, e)
  end
  -- include several.lua
  return new, fits
end

local function is_log(kind)
  return kind == LOG or kind == LEASES or kind == WHOLE_LOG or kind == LONG_LOG
end

local function make_upkeep()
  -- include upkeep.lua
end

-- check and peek: the reply to a plan from ARGV[at] and KEYS[key] on, and how many subjects that are.
local function decide_plan(operation, sizes, at, key)
  local found, changed, mended = {}, {}, {}
  local held = {} -- the records as this plan changes them, by key; the change of a long log, by index
  local flags, allowed, many = '', true, 0

  local function decide_subject(index)
    local name, limits = KEYS[key + index - 1], ARGV[at + 2 * (index - 1)]
    local _, kind, cost, micros, count = read(limits, NUMBERS, 0)
    local fits
    if kind == LONG_LOG then
      if not decide_ring then
        decide_ring, change_ring = make_ring()
      end
      fits, found[index], changed[index], held[index] = decide_ring(name, nil, cost, micros, count)
      mended[index] = not fits and held[index]
    else
      local record, new = held[name], nil
      if not record then
        if kind == WHOLE_LOG then
          upkeep = upkeep or make_upkeep()
          record = upkeep.load(name, kind)
        else
          record = call('GET', name) or ''
        end
      end
      new, fits = decide(record, limits)
      -- A state that was repaired is written on a refusal too, unless an earlier subject of this plan changed it.
      mended[index] = not fits and new ~= record and not held[name]
      found[index], changed[index], held[name] = fits and record or new, new, new
    end
    local flag = found[index] == '' and 2 or 0
    flags = flags .. string.char(fits and flag + 1 or flag)
    return fits
  end

  for number = 1, #sizes do
    local first, fits, before = many + 1, true, {}
    many = many + string.byte(sizes, number)
    for index = first, many do
      before[index] = held[KEYS[key + index - 1]]
      fits = decide_subject(index) and fits
    end
    if not fits then -- nothing of this check was taken: if its keys are in the plan again, they are as before
      allowed = false
      for index = first, many do
        if not mended[index] then
          held[KEYS[key + index - 1]] = before[index]
        end
      end
    end
  end
  local taken = allowed and operation == 'check'
  local records = taken and changed or found
  if taken then
    flags = string.rep('\1', many)
  end
  for index = 1, many do
    local word = at + 2 * (index - 1)
    local kind = string.byte(ARGV[word])
    if taken or mended[index] and operation == 'check' then
      local name, ttl = KEYS[key + index - 1], ARGV[word + 1]
      if kind == LONG_LOG then
        change_ring(name, ttl, held[index])
      elseif kind == WHOLE_LOG then
        upkeep.save(name, kind, changed[index], ttl)
      else
        call('SET', name, changed[index], 'PX', ahead and 2 * ttl .. '' or ttl)
      end
    end
    if kind == LEASES then
      records[index] = without_notes(records[index])
    end
    if many > 1 and is_log(kind) then
      records[index] = pack('>I4', #records[index]) .. records[index]
    end
  end
  return flags .. pack('>I8', now) .. table.concat(records), many
end

local replies, answered = {}, 0

-- one and each: `many` plans of one subject, alike but for their keys.  Adds a reply for each.
local function decide_each(many, at, key)
  local limits, ttl = ARGV[at], ARGV[at + 1]
  local more, kind, cost, a, b, c, d, e = read(limits, NUMBERS, 0)
  local refused = pack('>i8', -1 - now)
  local found, held = nil, {} -- the records that were read, and their changes: a key may be there more than once
  if kind ~= LONG_LOG then
    found = call('MGET', values(KEYS, key, key + many - 1))
  elseif not decide_ring then
    decide_ring, change_ring = make_ring()
  end
  local new, fits, then_from
  for index = 1, many do
    local name = KEYS[key + index - 1]
    ahead = false
    if kind == LONG_LOG then
      local before, after
      fits, before, after = decide_ring(name, ttl, cost, a, b)
      new = fits and after or before
    else
      local record = held[name] or found[index] or ''
      if more > 0 then
        new, fits = decide(record, limits)
      else
        local state = record
        -- include decide-first
      end
      if new ~= record then
        call('SET', name, new, 'PX', ahead and 2 * ttl .. '' or ttl)
      end
      held[name] = new
    end
    if fits and ahead then
      replies[answered + index] = pack('>BI7c0', AHEAD, now, new)
    else
      replies[answered + index] = fits and new or refused .. new
    end
  end
  answered = answered + many
end

-- plans: `many` plans of `size` subjects each, alike but for their keys.  Adds a reply for each.  All records are
-- read at once.  Each is written once, at the end: a key that many plans share, such as that of all callers, costs
-- one write.
local function decide_plans(many, size, at, key)
  local found = call('MGET', values(KEYS, key, key + many * size - 1))
  local changed, order, ttls = {}, {}, {} -- new records and times to live by name; the names in the order of writing
  local before, after, fits, flags = {}, {}, {}, {}

  local function change(name, index)
    if not changed[name] then
      order[#order + 1] = name
    end
    local ttl = ARGV[at + 2 * index - 1]
    changed[name], ttls[name] = after[index], ahead and 2 * ttl .. '' or ttl
  end

  for plan = 1, many do
    local first, allowed = (plan - 1) * size, true
    ahead = false
    for index = 1, size do
      local record = changed[KEYS[key + first + index - 1]] or found[first + index] or ''
      before[index] = record
      after[index], fits[index] = decide(record, ARGV[at + 2 * index - 2])
      allowed = allowed and fits[index]
    end
    if allowed then
      for index = 1, size do
        change(KEYS[key + first + index - 1], index)
      end
      replies[answered + plan] = table.concat(after, '', 1, size)
      if ahead then
        replies[answered + plan] = pack('>BI7', AHEAD, now) .. string.rep('\1', size) .. replies[answered + plan]
      end
    else
      for index = 1, size do
        if fits[index] then
          flags[index], after[index] = before[index] == '' and '\3' or '\1', before[index]
        else
          flags[index] = after[index] == '' and '\2' or '\0'
          if after[index] ~= before[index] then -- mended
            change(KEYS[key + first + index - 1], index)
          end
        end
      end
      replies[answered + plan] =
        pack('>i8', -1 - now) .. table.concat(flags, '', 1, size) .. table.concat(after, '', 1, size)
    end
  end
  for index = 1, #order do
    local name = order[index]
    call('SET', name, changed[name], 'PX', ttls[name])
  end
  answered = answered + many
end

local at, key = 1, 1
repeat
  local operation, many = ARGV[at], 1
  if operation == 'one' then
    decide_each(1, at + 1, key)
    at = at + 3
  elseif operation == 'each' then
    many = ARGV[at + 1] + 0
    decide_each(many, at + 2, key)
    at = at + 4
  elseif operation == 'plans' then
    local plans, size = ARGV[at + 1] + 0, ARGV[at + 2] + 0
    decide_plans(plans, size, at + 3, key)
    many = plans * size
    at = at + 3 + 2 * size
  else
    answered = answered + 1
    ahead = false
    if operation == 'check' or operation == 'peek' then
      replies[answered], many = decide_plan(operation, ARGV[at + 1], at + 2, key)
      at = at + 2 + 2 * many
    elseif operation == 'all' then
      many = ARGV[at + 1] + 0
      local allowed, flags, records = decide_all(many, at + 2, key, true)
      if allowed and ahead then
        replies[answered] = pack('>BI7', AHEAD, now) .. string.rep('\1', many) .. records
      else
        replies[answered] = allowed and records or pack('>i8', -1 - now) .. flags .. records
      end
      at = at + 2 + 2 * many
    else
      many = ARGV[at + 1] + 0
      upkeep = upkeep or make_upkeep()
      replies[answered], at = upkeep[operation](many, at + 2, key)
    end
  end
  key = key + many
until not ARGV[at]
return answered == 1 and replies[1] or replies

-- The driver: what is asked, read, decided, written and answered.  Only this file and those that it includes call the
-- server: ring.lua and upkeep.lua.  (script.py puts them together, and says why some lines look as they do.)
--
-- ARGV is a list of plans:
--     one                        subject     one limit of one key is checked
--     each    number             subject     the same for so many keys, each a plan of its own
--     all     number             subject...  checked all or nothing; no key twice, no long log
--     check   sizes              subject...  the same for any keys; a byte a check says how many subjects it has
--     peek    sizes              subject...  as check, but nothing is taken
--     take    number             subject...  as much of the cost as fits
--     refund  number, taken_at   subject...  taken_at in microseconds; '' is now
--     states, reset  number      kinds...
-- A subject is one of KEYS, in their order, and four words:
--     kinds   a letter for the rule of each limit; just one where they are all the same
--     cost
--     ttl     milliseconds
--     limits  packed for their twins, one behind the other, in the order of their states in the key's record
--
-- A plan is decided whole, then written whole: all or nothing.  A refusal writes nothing, except a state that a clock
-- stepping back or a lowered limit left impossible.  Every write sets the key's time to live in the same step.
--
-- A reply is one string a plan: a byte for every subject (1: it fits, 2: its record is empty), now in I8, then the
-- records: the new ones if all was taken, else those that were found, mended if need be.  Where there are several
-- subjects, the length in I4 stands before each log; after other operations than check and peek, before each record.
--
-- To make a function costs the server as much as a step of deciding.  So the common is answered first, and what a call
-- does not need is never made: that is why functions stand between the cases instead of above them, and why some text
-- is included more than once, above all `decide`, the bodies of the twins (see script.py).

-- Microseconds, read once: `now`.
-- include now

local LONG_LOG = 'r' -- in a ring, changed in place
local WHOLE_LOG = 'w' -- the same, read and written as a whole
local pack, unpack, values = struct.pack, struct.unpack, unpack
local call, KEYS, ARGV = redis.call, KEYS, ARGV

-- Case 1, most calls: one limit of one key.
if ARGV[1] == 'one' and ARGV[2] ~= LONG_LOG and not ARGV[6] then
  local record = call('GET', KEYS[1]) or ''
  local kind, state, limit, cost, from, at = ARGV[2], record, ARGV[5], ARGV[3] + 0, 1, 1
  local new, fits, then_from, then_at
  -- include decide
  if new ~= record then
    call('SET', KEYS[1], new, 'PX', ARGV[4])
  end
  return pack('>BI8', fits and 1 or 0, now) .. new
end

-- Case 2: several limits of one key.
if ARGV[1] == 'all' and ARGV[2] == '1' and not ARGV[7] then
  local kinds, cost, limits = ARGV[3], ARGV[4] + 0, ARGV[6]
  local record = call('GET', KEYS[1]) or ''
  -- include several.lua
  if new ~= record then
    call('SET', KEYS[1], new, 'PX', ARGV[5])
  end
  return pack('>BI8', allowed and 1 or 0, now) .. new
end

-- Case 3: one long log.
if ARGV[1] == 'one' and ARGV[2] == LONG_LOG and not ARGV[6] then
  -- include ring.lua
  local allowed, before, after = decide_ring(KEYS[1], ARGV[5], ARGV[3] + 0, ARGV[4])
  return pack('>BI8', allowed and 1 or 0, now) .. (allowed and after or before)
end

-- The new record of a key with one limit or several, and whether all of them fit.
local function decide(record, kinds, limits, cost)
  -- include several.lua
  return new, allowed
end

-- all: decides subject after subject on the way in and writes on the way out, so it needs no table in between.
-- Returns whether all fit, their flags and their records.
local function decide_all(left, at, key, allowed)
  local ttl = ARGV[at + 2]
  local record = call('GET', KEYS[key]) or ''
  local new, fits = decide(record, ARGV[at], ARGV[at + 3], ARGV[at + 1] + 0)
  local flags, records = '', ''
  allowed = allowed and fits
  if left > 1 then
    allowed, flags, records = decide_all(left - 1, at + 4, key + 1, allowed)
  end
  if allowed then
    call('SET', KEYS[key], new, 'PX', ttl)
    return true, '\1' .. flags, new .. records
  elseif fits then
    return false, (record == '' and '\3' or '\1') .. flags, record .. records
  elseif new ~= record then
    call('SET', KEYS[key], new, 'PX', ttl)
  end
  return false, (new == '' and '\2' or '\0') .. flags, new .. records
end

-- Case 4: one plan of several keys.
if ARGV[1] == 'all' and not ARGV[3 + 4 * ARGV[2]] then
  local _, flags, records = decide_all(ARGV[2] + 0, 3, 1, true)
  return flags .. pack('>I8', now) .. records
end

-- Case 5: any plans.
local decide_ring, change_ring, upkeep -- made when they are needed

local function make_ring()
  -- include ring.lua
  local function change_ring(key, ttl, change)
    if change.whole then
      local _, save_ring = make_whole()
      save_ring(key, change.whole, 0, ttl)
    else
      write_ring(key, ttl, values(change))
    end
  end

  return decide_ring, change_ring, make_whole
end

local function is_log(kinds)
  return kinds == 'd' or kinds == 'c' or kinds == WHOLE_LOG or kinds == LONG_LOG
end

local function make_upkeep()
  -- include upkeep.lua
end

-- check and peek: the reply to a plan from ARGV[at] and KEYS[key] on, and how many subjects that are.
local function decide_plan(operation, sizes, at, key)
  local found, changed, mended = {}, {}, {}
  local held = {} -- the records as this plan changed them, by key; of a long log, its change by index
  local flags, allowed, many = '', true, 0

  local function decide_subject(index)
    local word = at + 4 * (index - 1)
    local name, kinds, cost, limits = KEYS[key + index - 1], ARGV[word], ARGV[word + 1] + 0, ARGV[word + 3]
    local fits
    if kinds == LONG_LOG then
      if not decide_ring then
        decide_ring, change_ring = make_ring()
      end
      fits, found[index], changed[index], held[index] = decide_ring(name, limits, cost)
      mended[index] = not fits and held[index]
    else
      local record, new = held[name], nil
      if not record then
        if kinds == WHOLE_LOG then
          upkeep = upkeep or make_upkeep()
          record = upkeep.load(name, kinds)
        else
          record = call('GET', name) or ''
        end
      end
      new, fits = decide(record, kinds, limits, cost)
      -- A state that was mended is written on a refusal too, unless an earlier subject of this plan changed it.
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
    if not fits then -- nothing of this check was taken: where its keys stand again in the plan, they are as before
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
    local word = at + 4 * (index - 1)
    local kinds = ARGV[word]
    if taken or mended[index] and operation == 'check' then
      local name, ttl = KEYS[key + index - 1], ARGV[word + 2]
      if kinds == LONG_LOG then
        change_ring(name, ttl, held[index])
      elseif kinds == WHOLE_LOG then
        upkeep.save(name, kinds, changed[index], ttl)
      else
        call('SET', name, changed[index], 'PX', ttl)
      end
    end
    if many > 1 and is_log(kinds) then
      records[index] = pack('>I4', #records[index]) .. records[index]
    end
  end
  return flags .. pack('>I8', now) .. table.concat(records), many
end

local replies, answered = {}, 0

-- one and each: `many` plans of one subject, alike but for their keys.  Adds a reply for each.
local function decide_each(many, at, key)
  local kinds, cost, ttl, limits = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2], ARGV[at + 3]
  local yes, no = pack('>BI8', 1, now), pack('>BI8', 0, now)
  if kinds == LONG_LOG and not decide_ring then
    decide_ring, change_ring = make_ring()
  end
  local new, fits, then_from, then_at
  for index = 1, many do
    local name = KEYS[key + index - 1]
    if kinds == LONG_LOG then
      local before, after
      fits, before, after = decide_ring(name, limits, cost, ttl)
      new = fits and after or before
    else
      local record = call('GET', name) or ''
      local kind, state, limit, from, at = kinds, record, limits, 1, 1
      -- include decide
      if new ~= record then
        call('SET', name, new, 'PX', ttl)
      end
    end
    replies[answered + index] = (fits and yes or no) .. new
  end
  answered = answered + many
end

local at, key = 1, 1
repeat
  local operation, many = ARGV[at], 1
  if operation == 'one' then
    decide_each(1, at + 1, key)
    at = at + 5
  elseif operation == 'each' then
    many = ARGV[at + 1] + 0
    decide_each(many, at + 2, key)
    at = at + 6
  else
    answered = answered + 1
    if operation == 'check' or operation == 'peek' then
      replies[answered], many = decide_plan(operation, ARGV[at + 1], at + 2, key)
      at = at + 2 + 4 * many
    elseif operation == 'all' then
      many = ARGV[at + 1] + 0
      local _, flags, records = decide_all(many, at + 2, key, true)
      replies[answered] = flags .. pack('>I8', now) .. records
      at = at + 2 + 4 * many
    else
      many = ARGV[at + 1] + 0
      upkeep = upkeep or make_upkeep()
      replies[answered], at = upkeep[operation](many, at + 2, key)
    end
  end
  key = key + many
until not ARGV[at]
return answered == 1 and replies[1] or replies

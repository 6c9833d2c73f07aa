// Twins of algorithms/*.py: same names, same order of steps, integers of any size, no clock.
// A test runs them side by side with the Python rules.
"use strict";

const FRACTION = 26n; // bits of the ticks in the state of a bucket
const MOST_DRAIN = 1n << FRACTION;
const TICKS = MOST_DRAIN - 1n;
const MOST_TICKS = 1n << 52n;
const FIELD = 52n;
const MASK = (1n << FIELD) - 1n;

const min = (one, other) => (one < other ? one : other);

function gcd(one, other) {
  while (other) [one, other] = [other, one % other];
  return one;
}

// The smallest fraction not below numerator / denominator whose denominator is at most `most`.
function fractionAbove(numerator, denominator, most) {
  let [low, lowOf] = [numerator / denominator, 1n];
  let [high, highOf] = [low + 1n, 1n];
  let below = numerator - denominator * low;
  let above = denominator * high - numerator;
  while (below && above && highOf + lowOf <= most) {
    let steps = min(below / above, (most - lowOf) / highOf);
    [low, lowOf, below] = [low + steps * high, lowOf + steps * highOf, below - steps * above];
    if (below) {
      steps = min(above / below, (most - highOf) / lowOf);
      [high, highOf, above] = [high + steps * low, highOf + steps * lowOf, above - steps * below];
    }
  }
  return below ? [high, highOf] : [low, lowOf];
}

// The windows of a time zone, from the one with the number `first` on: the instants at which they begin.
// Like the C core, the page gets them as numbers from Python, and knows no time zone.
function makeCalendar({ first, edges }) {
  const starts = edges.map(BigInt);
  return {
    starts,
    index(now) {
      let [low, high] = [0, starts.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (starts[middle] > now) high = middle;
        else low = middle + 1;
      }
      return BigInt(first + low - 1);
    },
  };
}

// `count` per `micros` microseconds; the burst of a bucket is its count by default.  `calendar` has the edges of a
// calendar window.
function makeLimit(algorithm, count, micros, burst, slices, calendar) {
  count = BigInt(count);
  micros = BigInt(micros);
  const capacity = BUCKETS.has(algorithm) && burst ? BigInt(burst) : count;
  let unit = 1n;
  let drain = 1n;
  if (BUCKETS.has(algorithm)) {
    const shared = gcd(count, micros);
    [unit, drain] = [micros / shared, count / shared];
    const most = min(MOST_DRAIN, MOST_TICKS / capacity);
    if (drain > most) [unit, drain] = fractionAbove(micros, count, most);
  }
  const full = capacity * unit;
  const slack = (min(full, micros * drain) - unit) / drain;
  const ceiling = BUCKETS.has(algorithm) && slack > 0n ? full + slack * drain : full;
  return { algorithm, count, micros, burst: capacity, slices: BigInt(slices || 1), unit, drain, full, ceiling, calendar: calendar ? makeCalendar(calendar) : null };
}

// The ticks from now to the state of a bucket; 0 if it has passed.
function ticksAhead(state, now, limit) {
  const ahead = state - (now << FRACTION);
  return ahead > 0n ? (ahead >> FRACTION) * limit.drain + min(ahead & TICKS, limit.drain - 1n) : 0n;
}

// The state that lies so many ticks after now.
const instant = (owed, now, limit) => ((now + owed / limit.drain) << FRACTION) | owed % limit.drain;

// A refusal leaves the state as it is, unless the clock stepped back far or the limit was changed.
const refuse = (state, now, limit) => [ticksAhead(state, now, limit) > limit.ceiling ? instant(limit.ceiling, now, limit) : state, false];

function gcra(state, now, limit, cost) {
  const tat = ticksAhead(state, now, limit) + cost * limit.unit;
  return tat > limit.full ? refuse(state, now, limit) : [instant(tat, now, limit), true];
}

function tokenBucket(state, now, limit, cost) {
  const tokens = limit.full - cost * limit.unit - ticksAhead(state, now, limit);
  return tokens < 0n ? refuse(state, now, limit) : [instant(limit.full - tokens, now, limit), true];
}

function leakyBucket(state, now, limit, cost) {
  const queued = ticksAhead(state, now, limit) + cost * limit.unit;
  return queued > limit.full ? refuse(state, now, limit) : [instant(queued, now, limit), true];
}

const fixedWindow = (state, now, limit, cost) => countIn(now / limit.micros, state, limit, cost);

const calendarWindow = (state, now, limit, cost) => countIn(limit.calendar.index(now), state, limit, cost);

// What both windows do with the number of the window that holds the present.
function countIn(window, state, limit, cost) {
  const stored = state >> FIELD;
  let used = 0n;
  if (stored >= window) {
    used = state & MASK;
    if (stored === window + 1n) window = stored;
    else if (stored > window) state = (window << FIELD) | used;
  }
  used += cost;
  return used > limit.count ? [state, false] : [(window << FIELD) | used, true];
}

function firstUseWindow(state, now, limit, cost) {
  let start = state >> FIELD;
  let used = state & MASK;
  if (!used || now >= start + limit.micros) [start, used] = [now, 0n];
  else if (start >= now + limit.micros) [start, state] = [now, (now << FIELD) | used];
  used += cost;
  return used > limit.count ? [state, false] : [(start << FIELD) | used, true];
}

function slidingLog(state, now, limit, cost) {
  const newest = state.length ? state[state.length - 1] : 0n;
  if (newest > now) {
    if (newest < now + limit.micros) now = newest;
    else state = state.map((instant) => min(instant, now));
  }
  let gone = 0;
  while (gone < state.length && state[gone] <= now - limit.micros) gone += 1;
  if (BigInt(state.length - gone) + cost > limit.count) return [state, false];
  // Unlike in Python, the log is changed in place: it may be long, and nothing else refers to it.
  if (state === NO_CALLS) state = [];
  if (gone) state.splice(0, gone);
  for (let left = cost; left > 0n; left -= 1n) state.push(now);
  return [state, true];
}

function slidingWindow(state, now, limit, cost) {
  const { slices, micros: width } = limit;
  const bits = FIELD * slices;
  const top = bits + FIELD;
  let position = now * slices;
  let newest = position / width;
  let counters = state & ((1n << top) - 1n);
  const passed = newest - (state >> top);
  if (passed > 0n) {
    counters = passed <= slices ? (counters << (FIELD * passed)) & ((1n << top) - 1n) : 0n;
  } else if (passed < 0n && passed >= -slices) {
    newest -= passed;
    position = newest * width;
  } else if (passed < 0n) {
    counters = min(limit.count, counters % MASK);
    state = (newest << top) | counters;
  }
  const oldest = counters >> bits;
  // The sum of a number's digits in base MASK + 1 is that number modulo MASK.
  const room = limit.count - cost - ((counters - (oldest << bits)) % MASK);
  if (room < 0n || (oldest && min(oldest, limit.count) * ((newest + 1n) * width - position) > room * width)) return [state, false];
  return [(newest << top) | (counters + cost), true];
}

// Microseconds until the turn of a call that left a leaky bucket in `state`.
function delay(state, now, limit, cost) {
  const backlog = min(limit.ceiling, ticksAhead(state, now, limit));
  const excess = backlog - cost * limit.unit;
  return excess > 0n ? (excess + limit.drain - 1n) / limit.drain : 0n;
}

const NO_CALLS = Object.freeze([]);
const BUCKETS = new Set(["token_bucket", "leaky_bucket", "gcra"]);
const RULES = {
  fixed_window: { decide: fixedWindow, empty: 0n },
  sliding_log: { decide: slidingLog, empty: NO_CALLS },
  sliding_window: { decide: slidingWindow, empty: 0n },
  token_bucket: { decide: tokenBucket, empty: 0n },
  leaky_bucket: { decide: leakyBucket, empty: 0n },
  gcra: { decide: gcra, empty: 0n },
  calendar_window: { decide: calendarWindow, empty: 0n },
  first_use_window: { decide: firstUseWindow, empty: 0n },
};

if (typeof module !== "undefined") module.exports = { RULES, makeLimit, delay };

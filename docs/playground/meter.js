// What the playground shows of a limit, worked out with the rules alone (rules.js).  No page, no clock: a test runs
// this file beside Python.
"use strict";

const DAY = 86400e6;
const MONTH = 31 * DAY; // the longest month, which stands for all of them where there is no calendar
const isCalendar = (micros) => [DAY, 7 * DAY, MONTH].includes(micros);
const YEARS = 60; // that the virtual time of the playground may last; it begins in 1970

// Where the days, weeks or months of UTC begin.
function utcCalendar(micros) {
  const until = Date.UTC(1970 + YEARS) * 1000;
  const edges = [0];
  for (let number = 1; edges[edges.length - 1] < until; number += 1) {
    // 1970 began on a Thursday, and weeks begin on Monday.
    edges.push(micros === MONTH ? Date.UTC(1970, number) * 1000 : micros === DAY ? number * DAY : (7 * number - 3) * DAY);
  }
  return { first: 0, edges };
}

// A lane decides calls with one algorithm.  Instants are whole microseconds, as in Python.
function makeLane(algorithm, settings) {
  const calendar = algorithm === "calendar_window" ? utcCalendar(settings.micros) : null;
  const limit = makeLimit(algorithm, settings.count, settings.micros, settings.burst, settings.slices, calendar);
  return { algorithm, limit, rule: RULES[algorithm], state: RULES[algorithm].empty };
}

// Sliding logs are changed in place, so a question that must change nothing gets a copy.
const copied = (state) => (Array.isArray(state) && state.length ? [...state] : state);

const fits = (lane, now, cost) => lane.rule.decide(copied(lane.state), now, lane.limit, cost)[1];

// The smallest number in [low, high] for which `holds`, which is false up to a point and true from there on.
function smallest(low, high, holds) {
  while (low < high) {
    const middle = (low + high) / 2n;
    if (holds(middle)) high = middle;
    else low = middle + 1n;
  }
  return low;
}

// The largest cost that would be admitted now.
function remaining(lane, now) {
  const { limit } = lane;
  const capacity = limit.full / limit.unit;
  return capacity + 1n - smallest(1n, capacity + 1n, (spare) => spare > capacity || fits(lane, now, capacity + 1n - spare));
}

// Microseconds until a call of this cost would be admitted; null if it never can be.
function retryAfter(lane, now, cost) {
  const { limit } = lane;
  const longest = 2n * limit.micros + limit.full / limit.drain + 1n;
  if (!fits(lane, now + longest, cost)) return null;
  return smallest(0n, longest, (wait) => fits(lane, now + wait, cost));
}

// Decide one call.
function call(lane, now, cost) {
  const [state, allowed] = lane.rule.decide(lane.state, now, lane.limit, cost);
  lane.state = state;
  const queued = allowed && lane.algorithm === "leaky_bucket";
  return { allowed, delay: queued ? delay(state, now, lane.limit, cost) : 0n };
}

// The limiter as it is written in Python.  `period` is its text, such as "10 seconds".
function pythonLine(algorithm, { count, burst, slices }, period) {
  if (algorithm === "calendar_window") return `Limiter("${count}/${period} calendar")`;
  if (period === "month") period = "31 days";
  const per = /^\d/.test(period) ? `${count} per ${period}` : `${count}/${period}`;
  if (algorithm === "first_use_window") return `Limiter("${per} first-use")`;
  const more =
    BUCKETS.has(algorithm) && burst !== count ? ` burst ${burst}`
    : algorithm === "sliding_window" && slices > 1 ? ` slices ${slices}`
    : "";
  return `Limiter("${per}${more}"${algorithm === "gcra" ? "" : `, algorithm="${algorithm}"`})`;
}

// Random numbers that a seed reproduces.
function chance(seed) {
  return () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed / 2 ** 32;
  };
}

// The instants of calls in [from, until), in microseconds.  `load` is the offered rate as a share of the limit.
const TRAFFIC = {
  none: () => [],
  steady: ({ count, micros }, load, from, until) => {
    const gap = micros / (count * load);
    const instants = [];
    for (let at = Math.ceil(from / gap) * gap; at < until; at += gap) instants.push(Math.round(at));
    return instants;
  },
  random: ({ count, micros }, load, from, until, random) => {
    const gap = micros / (count * load);
    const instants = [];
    for (let at = from - Math.log(1 - random()) * gap; at < until; at -= Math.log(1 - random()) * gap)
      instants.push(Math.round(at));
    return instants;
  },
  // All calls of a period at once, in its middle.
  bursts: ({ count, micros }, load, from, until) => {
    const instants = [];
    for (let turn = Math.floor(from / micros); turn * micros < until; turn += 1) {
      const at = Math.round((turn + 0.5) * micros);
      if (at >= from && at < until) instants.push(...new Array(Math.max(1, Math.round(count * load))).fill(at));
    }
    return instants;
  },
  // A burst just before every second edge of a fixed window, and one just after it: the window admits both.
  edges: ({ count, micros }, load, from, until) => {
    const instants = [];
    const many = Math.max(1, Math.round(count * load));
    for (let edge = Math.floor(from / (2 * micros)) * 2 * micros; edge < until + micros; edge += 2 * micros)
      for (const at of [edge - micros / 50, edge + micros / 50].map(Math.round))
        if (at >= from && at < until) instants.push(...new Array(many).fill(at));
    return instants;
  },
};

if (typeof module !== "undefined")
  module.exports = { isCalendar, utcCalendar, makeLane, remaining, retryAfter, call, pythonLine, TRAFFIC, chance };

// Decides recorded calls again under another limit, as the lab does.  No page is needed: a test runs this file alone.
"use strict";

const SHARED_KEY = "everybody";

// The calls of a report.  Times are transferred as differences, because these are shorter; `origin` is the instant of
// time 0.  `costs` is a list, or one cost for all calls.
function readCalls({ steps, origin, who, costs, maxDelay }) {
  const times = [];
  steps.reduce((at, step) => (times.push(at + step), at + step), 0);
  return {
    times,
    who,
    instants: times.map((at) => BigInt(at) + BigInt(origin)),
    costs: Array.isArray(costs) ? costs : times.map(() => costs),
    // A log counts requests, whatever one of them costs; a simulation adds up costs.
    weight: Array.isArray(costs) ? (cost) => cost : () => 1,
    maxDelay: maxDelay ?? Infinity,
  };
}

function decideAll(name, settings, { times, who, instants, costs, weight, maxDelay }) {
  const { decide, empty } = RULES[name];
  const limit = makeLimit(name, settings.count, settings.micros, settings.burst, settings.slices, settings.calendar);
  const states = new Map();
  const histories = new Map(); // the turns of each key, once for each unit of cost
  const turns = [];
  const refused = [];
  const hit = new Set();
  let [admitted, lost, longest, worst] = [0, 0, 0, 0];
  for (let index = 0; index < times.length; index += 1) {
    const key = settings.shared ? SHARED_KEY : who[index];
    const now = instants[index];
    const cost = BigInt(costs[index]);
    const [state, fits] = decide(states.get(key) ?? empty, now, limit, cost);
    const wait = fits && name === "leaky_bucket" ? Number(delay(state, now, limit, cost)) : 0;
    const allowed = fits && wait <= maxDelay;
    if (allowed || !fits) states.set(key, state); // a call whose turn would come too late takes nothing
    if (!allowed) {
      refused.push(times[index]);
      hit.add(who[index]);
      lost += weight(costs[index]);
      continue;
    }
    longest = Math.max(longest, wait);
    const turn = times[index] + wait;
    turns.push(turn);
    admitted += weight(costs[index]);
    const history = histories.get(key) ?? [];
    if (!history.length) histories.set(key, history);
    for (let unit = 0; unit < costs[index]; unit += 1) {
      history.push(turn);
      if (history.length > worst && history[history.length - 1 - worst] > turn - settings.micros) worst += 1;
    }
  }
  return { turns, refused, admitted, lost, longest, worst, hit: hit.size };
}

// Months and years have no other length than that of the calendar; other algorithms count by the longest.
const CALENDAR_UNITS = { 86400e6: "day", 604800e6: "week", 2678400e6: "month", 31622400e6: "year" };

// The algorithms that can decide by this period: calendar windows are days, weeks, months and years.
const playable = (micros) => Object.keys(RULES).filter((name) => name !== "calendar_window" || micros in CALENDAR_UNITS);

// The edges of the calendar windows that the calls of a report lie in.
const calendarOf = (played, micros) => played.calendars?.[CALENDAR_UNITS[micros]];

if (typeof module !== "undefined") module.exports = { readCalls, decideAll, playable, calendarOf };

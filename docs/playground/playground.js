// The playground: two algorithms decide the same calls, live.  meter.js decides, this file draws and listens.
"use strict";

(() => {
  const root = document.getElementById("live-lanes");
  if (!root) return;
  const PERIODS = { second: 1e6, "5 seconds": 5e6, "10 seconds": 10e6, minute: 60e6, hour: 3600e6, day: DAY, week: 7 * DAY, month: MONTH };
  const NAMES = Object.keys(RULES);
  const SHOWN = 2.5; // periods on screen
  const MOST_SHOWN = 4000; // calls kept for drawing
  const MOST_AT_ONCE = 500; // calls decided in one frame: a hidden page does not catch up for minutes
  const byName = (name) => root.querySelector(`[name="${name}"]`);
  const show = (name, text) => { root.querySelector(`[data-shows="${name}"]`).textContent = text; };
  const DEFAULTS = { count: 10, period: "10 seconds", burst: 0, slices: 1, a: "gcra", b: "fixed_window", traffic: "random", load: 120, speed: 1 };

  let settings, lanes, random, seen;
  let now = 0; // microseconds of virtual time
  let drawnAt = null;
  let paused = false;

  function fromAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const chosen = { ...DEFAULTS };
    for (const [name, fallback] of Object.entries(DEFAULTS)) {
      const text = given.get(name);
      if (text === null) continue;
      const field = byName(name);
      const isOffered = field.options ? [...field.options].some((option) => option.value === text) : true;
      const number = Math.round(Number(text));
      if (typeof fallback === "string") chosen[name] = isOffered ? text : fallback;
      else if (field.options) chosen[name] = isOffered ? Number(text) : fallback;
      else chosen[name] = Number.isFinite(number) ? Math.min(Number(field.max), Math.max(Number(field.min), number)) : fallback;
    }
    return chosen;
  }

  // Calendar windows are days, weeks or months: with another period there are none to choose.
  function offerCalendars() {
    const isOffered = isCalendar(PERIODS[byName("period").value]);
    for (const side of ["a", "b"]) {
      const field = byName(side);
      [...field.options].find((option) => option.value === "calendar_window").disabled = !isOffered;
      if (!isOffered && field.value === "calendar_window") field.value = "fixed_window";
    }
  }

  function read() {
    offerCalendars();
    return Object.fromEntries(
      Object.entries(DEFAULTS).map(([name, fallback]) => [
        name, typeof fallback === "string" ? byName(name).value : Number(byName(name).value),
      ])
    );
  }

  const limitOf = (chosen) => ({
    count: chosen.count, burst: chosen.burst || chosen.count, slices: chosen.slices, micros: PERIODS[chosen.period],
  });

  // New settings start over: the lanes have other states, and the link says the new limit.
  function restart() {
    settings = read();
    const limit = limitOf(settings);
    now = 0;
    random = chance(7);
    seen = [];
    lanes = ["a", "b"].map((side) => ({
      ...makeLane(settings[side], limit), side, admitted: 0, refused: 0, latest: null, canvas: root.querySelector(`[data-lane="${side}"] canvas`),
    }));
    show("count", `${settings.count} per ${settings.period}`);
    show("burst", settings.burst ? String(settings.burst) : "same as the limit");
    show("slices", String(settings.slices));
    show("load", `${settings.load} % of the limit`);
    for (const lane of lanes) {
      show(`${lane.side}-line`, pythonLine(lane.algorithm, limit, settings.period));
    }
    const changed = Object.entries(settings).filter(([name, value]) => value !== DEFAULTS[name]);
    history.replaceState(null, "", changed.length ? `#${new URLSearchParams(changed)}` : location.pathname + location.search);
    draw();
  }

  function decide(at) {
    const outcomes = lanes.map((lane) => {
      const outcome = call(lane, BigInt(at), 1n);
      lane[outcome.allowed ? "admitted" : "refused"] += 1;
      lane.latest = outcome.allowed ? null : at;
      return { allowed: outcome.allowed, turn: at + Number(outcome.delay) };
    });
    seen.push({ at, outcomes });
    if (seen.length > MOST_SHOWN) seen.splice(0, seen.length - MOST_SHOWN);
  }

  function step(frameAt) {
    requestAnimationFrame(step);
    const passed = drawnAt === null ? 0 : Math.min(250, frameAt - drawnAt);
    drawnAt = frameAt;
    if (paused || document.hidden) return;
    const until = Math.round(now + passed * 1000 * settings.speed);
    const offered = TRAFFIC[settings.traffic](limitOf(settings), settings.load / 100, now, until, random);
    offered.slice(0, MOST_AT_ONCE).forEach(decide);
    now = until;
    draw();
  }

  function seconds(micros) {
    if (micros === null) return "never";
    const value = Number(micros) / 1e6;
    if (value < 10) return `${value.toFixed(2)} s`;
    if (value < 120) return `${Math.round(value)} s`;
    if (value < 7200) return `${(value / 60).toFixed(1)} min`;
    return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} days`;
  }

  function edgesOf({ limit: { calendar } }, from, micros) {
    const edges = [];
    if (calendar) {
      const first = Number(calendar.index(BigInt(Math.round(Math.max(0, from)))));
      for (let number = first; calendar.starts[number] <= now; number += 1) edges.push(Number(calendar.starts[number]));
      return edges;
    }
    for (let edge = Math.ceil(from / micros) * micros; edge <= now; edge += micros) edges.push(edge);
    return edges;
  }

  function draw() {
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    const micros = PERIODS[settings.period];
    const from = now - SHOWN * micros;
    for (const [index, lane] of lanes.entries()) {
      const { canvas } = lane;
      const scale = window.devicePixelRatio || 1;
      const { clientWidth: width, clientHeight: height } = canvas;
      if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
        canvas.width = Math.round(width * scale);
        canvas.height = Math.round(height * scale);
      }
      const pen = canvas.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, width, height);
      const place = (at) => ((at - from) / (SHOWN * micros)) * width;
      pen.fillStyle = colour("edge"); // where the periods begin
      for (const edge of edgesOf(lane, from, micros)) pen.fillRect(place(edge), 0, 1, height);
      const middle = Math.round(height * 0.55);
      for (const { at, outcomes } of seen) {
        if (at < from) continue;
        const { allowed, turn } = outcomes[index];
        const left = place(at);
        pen.fillStyle = colour(allowed ? "admitted" : "refused");
        if (turn > at) { // a queue: a line to the turn
          pen.globalAlpha = 0.35;
          pen.fillRect(left, middle - 1, Math.min(width, place(turn)) - left, 2);
          pen.globalAlpha = 1;
        }
        if (allowed) pen.fillRect(left - 1.5, 6, 3, middle - 8);
        else pen.fillRect(left - 1.5, middle + 4, 3, height - middle - 8);
      }
      const instant = BigInt(now);
      const left = remaining(lane, instant);
      const capacity = lane.limit.full / lane.limit.unit;
      const bar = root.querySelector(`[data-lane="${lane.side}"] meter`);
      bar.max = Number(capacity);
      bar.value = Number(left);
      const wait = left > 0n ? "" : ` · retry after ${seconds(retryAfter(lane, instant, 1n))}`;
      show(`${lane.side}-figures`, `${lane.admitted} admitted · ${lane.refused} refused · ${left} of ${capacity} left${wait}`);
    }
  }

  function apply(chosen) {
    for (const [name, value] of Object.entries(chosen)) byName(name).value = value;
    restart();
  }

  for (const name of Object.keys(DEFAULTS)) byName(name).addEventListener("input", restart);
  for (const side of ["a", "b"]) {
    const field = byName(side);
    field.replaceChildren(...NAMES.map((name) => new Option(name, name)));
  }
  byName("period").replaceChildren(...Object.keys(PERIODS).map((period) => new Option(period, period)));
  byName("send").addEventListener("click", () => { decide(Math.round(now)); draw(); });
  byName("pause").addEventListener("click", ({ target }) => {
    paused = !paused;
    target.textContent = paused ? "Go on" : "Pause";
    target.setAttribute("aria-pressed", String(paused));
  });
  byName("restart").addEventListener("click", restart);
  byName("reset").addEventListener("click", () => apply(DEFAULTS));
  for (const side of ["a", "b"]) {
    byName(`copy-${side}`).addEventListener("click", async ({ target }) => {
      const text = root.querySelector(`[data-shows="${side}-line"]`).textContent;
      try {
        await navigator.clipboard.writeText(text);
        target.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(root.querySelector(`[data-shows="${side}-line"]`));
        target.textContent = "Selected";
      }
      setTimeout(() => { target.textContent = "Copy"; }, 1500);
    });
  }
  addEventListener("hashchange", () => apply(fromAddress()));
  addEventListener("resize", () => draw());
  paused = matchMedia("(prefers-reduced-motion: reduce)").matches; // no motion unless asked for
  if (paused) {
    byName("pause").textContent = "Go on";
    byName("pause").setAttribute("aria-pressed", "true");
  }
  apply(fromAddress());
  requestAnimationFrame(step);
})();

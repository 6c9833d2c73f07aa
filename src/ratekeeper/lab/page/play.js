// The interactive part: the sliders set the limit and the burst, and every algorithm decides the same calls again.
"use strict";

const play = JSON.parse(document.getElementById("played").textContent);
const NAMES = Object.keys(RULES);
const COLUMNS = 160;
const LONGER = 1.25; // a leaky bucket's last turns come after the last call; turns beyond this are not drawn

const calls = readCalls(play);
const times = calls.times;
const start = times.length ? times[0] : 0;
const span = Math.max(1, (times.length ? times[times.length - 1] : 0) - start + 1);

const byId = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const percent = (share) => (share === 0 ? "0 %" : `${(100 * share).toFixed(share < 0.01 ? 2 : 1)} %`);

function seconds(micros) {
  const value = micros / 1e6;
  if (!value) return "none";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}

// Sliders are logarithmic: small limits are as easy to set as large ones.
const toCount = (value, most) => Math.max(1, Math.round(Math.exp((value / 1000) * Math.log(most))));
const toValue = (count, most) => Math.round((1000 * Math.log(Math.max(1, count))) / Math.log(most));

function binned(instants, length) {
  const counts = new Array(COLUMNS).fill(0);
  for (const at of instants) {
    const column = Math.floor(((at - start) / length) * COLUMNS);
    if (column < COLUMNS) counts[column] += 1;
  }
  return counts;
}

function draw(canvas, admitted, refused, most) {
  const scale = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  const colours = getComputedStyle(document.documentElement);
  pen.scale(scale, scale);
  pen.clearRect(0, 0, width, height);
  const step = width / COLUMNS;
  admitted.forEach((count, place) => {
    const admittedHeight = (count / most) * (height - 2);
    const refusedHeight = (refused[place] / most) * (height - 2);
    const left = Math.floor(place * step);
    const wide = Math.max(1, Math.ceil((place + 1) * step) - left - (step > 5 ? 1 : 0));
    pen.fillStyle = colours.getPropertyValue("--admitted");
    pen.fillRect(left, height - admittedHeight, wide, admittedHeight);
    pen.fillStyle = colours.getPropertyValue("--refused");
    pen.fillRect(left, height - admittedHeight - refusedHeight, wide, refusedHeight);
  });
}

const lanes = Object.fromEntries(
  NAMES.map((name) => {
    const lane = document.createElement("div");
    lane.className = "lane";
    lane.innerHTML =
      `<div class="lane-head"><b>${name}</b><span class="lane-figures"></span></div>` +
      `<canvas role="img" aria-label="Calls admitted and refused over time by ${name}"></canvas>`;
    byId("lanes").append(lane);
    return [name, { lane, canvas: lane.querySelector("canvas"), figures: lane.querySelector(".lane-figures") }];
  })
);

const mostCount = Math.max(1000, play.count * 20);
const controls = { count: byId("count"), burst: byId("burst"), period: byId("period"), shared: byId("shared") };
let burstFollows = play.burst === play.count;
controls.count.value = toValue(play.count, mostCount);
controls.burst.value = toValue(play.burst, mostCount);
controls.shared.checked = play.shared;
if (![...controls.period.options].some((option) => Number(option.value) === play.micros)) {
  controls.period.add(new Option(play.period, play.micros));
}
controls.period.value = play.micros;

// A slider has 1000 steps and cannot show every count, so the limit of the report is kept until the slider moves.
let exact = { count: play.count, burst: play.burst };

function settings() {
  const count = exact.count ?? toCount(controls.count.value, mostCount);
  let burst = exact.burst ?? toCount(controls.burst.value, mostCount);
  if (burstFollows) {
    burst = count;
    controls.burst.value = toValue(burst, mostCount);
  }
  const micros = Number(controls.period.value);
  return { count, burst, micros, slices: play.slices, shared: controls.shared.checked, calendar: calendarOf(play, micros) };
}

function redraw() {
  const chosen = settings();
  const period = controls.period.selectedOptions[0].textContent;
  byId("count-shown").textContent = number(chosen.count);
  byId("burst-shown").textContent = burstFollows ? `${number(chosen.burst)} (same as the limit)` : number(chosen.burst);
  const burst = chosen.burst === chosen.count ? "" : ` burst ${chosen.burst}`;
  byId("limit-shown").textContent = `${chosen.count} per ${period}${burst}`;
  const played = playable(chosen.micros);
  const outcomes = Object.fromEntries(played.map((name) => [name, decideAll(name, chosen, calls)]));
  const last = Math.max(...Object.values(outcomes).map((outcome) => outcome.turns.reduce((a, b) => Math.max(a, b), 0)));
  const length = Math.min(span * LONGER, Math.max(span, last - start + 1)); // one time axis for all
  const columns = Object.fromEntries(
    played.map((name) => [name, [binned(outcomes[name].turns, length), binned(outcomes[name].refused, length)]])
  );
  const most = Math.max(1, ...Object.values(columns).flatMap(([admitted, refused]) => admitted.map((a, i) => a + refused[i])));
  for (const name of NAMES) lanes[name].lane.hidden = !played.includes(name);
  for (const name of played) {
    const outcome = outcomes[name];
    const { admitted, lost } = outcome;
    const wait = name === "leaky_bucket" ? ` · longest wait ${seconds(outcome.longest)}`
      : name === "sliding_window" && play.slices > 1 ? ` · ${play.slices} slices`
      : name === "calendar_window" ? ` · by the calendar of ${play.timezone}` : "";
    lanes[name].figures.textContent =
      `${number(admitted)} admitted · ${number(lost)} refused (${percent(lost ? lost / (admitted + lost) : 0)})` +
      ` · ${number(outcome.hit)} clients refused · worst window ${(outcome.worst / chosen.count).toFixed(2)} ×${wait}`;
    draw(lanes[name].canvas, ...columns[name], most);
  }
}

let frame = 0;
const redrawSoon = () => {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(redraw);
};
controls.count.addEventListener("input", () => { exact.count = null; redrawSoon(); });
controls.burst.addEventListener("input", () => { exact.burst = null; burstFollows = false; redrawSoon(); });
controls.period.addEventListener("input", redrawSoon);
controls.shared.addEventListener("input", redrawSoon);
byId("follow").addEventListener("click", () => { burstFollows = true; redrawSoon(); });
window.addEventListener("resize", redrawSoon);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawSoon);
redraw();

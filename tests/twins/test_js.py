"""The rules in the report's page, in a real engine, beside the Python rules: the same step by step."""

import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import ratekeeper.lab
from ratekeeper import InvalidLimit, Limit, lab
from ratekeeper.algorithms import ALGORITHMS, BUCKETS, WINDOWS
from ratekeeper.lab.report import replay_page, simulation_page
from ratekeeper.lab.traffic import recorded
from tests import tier
from tests.laws.walk import next_instant

PAGE = Path(ratekeeper.lab.__file__).parent / "page"
RULES_JS = PAGE / "rules.js"
IN_NODE = """
const { RULES, makeLimit, delay } = require(process.argv[1]);
const walks = JSON.parse(require("fs").readFileSync(0, "utf8"));
const tell = console.log;
"""
RUNNER = """
const text = (state) => Array.isArray(state) ? state.map(String) : String(state);
const wrong = [];
for (const [number, walk] of walks.entries()) {
  const limit = makeLimit(walk.algorithm, walk.count, walk.micros, walk.burst, walk.slices, walk.calendar);
  if (String(limit.unit) !== walk.unit || String(limit.drain) !== walk.drain) wrong.push([number, "limit"]);
  let state = RULES[walk.algorithm].empty, allowed;
  for (const [step, [now, cost, expected, expectedAllowed, wait]] of walk.steps.entries()) {
    [state, allowed] = RULES[walk.algorithm].decide(state, BigInt(now), limit, BigInt(cost));
    const same = JSON.stringify(text(state)) === JSON.stringify(expected) && allowed === expectedAllowed;
    const waits = walk.algorithm !== "leaky_bucket" || String(delay(state, BigInt(now), limit, BigInt(cost))) === wait;
    if (!same || !waits) { wrong.push([number, step, text(state), allowed]); break; }
  }
}
tell(JSON.stringify({ walks: walks.length, wrong }));
"""


def told(state):
    return [str(instant) for instant in state] if isinstance(state, tuple) else str(state)


PLAYED = (*ALGORITHMS, *WINDOWS)
ZONES = ["UTC", "Europe/Berlin", "America/Santiago", "Asia/Tehran", "Pacific/Apia"]


def random_limit(chance, name):
    if name == "calendar_window":
        unit = chance.choice(["day", "week", "month", "year"])
        return Limit.parse(f"{chance.choice([1, 2, 7, 50])}/{unit} calendar {chance.choice(ZONES)}")
    while True:
        count = chance.choice([1, 2, 3, 7, 50, 100, 999, chance.randrange(1, 10**6)])
        if name == "sliding_log":
            count = min(count, 300)
        period = chance.choice([0.001, 1, 7.000003, 60, 3600, 86_400, chance.randrange(1, 10**9) / 10**6])
        burst = chance.choice([None, 1, count, 3 * count + 1]) if name in BUCKETS else None
        slices = chance.choice([1, 1, 3, 10]) if name == "sliding_window" else 1
        try:
            return Limit(count, period, burst=burst, algorithm=name, slices=slices)
        except InvalidLimit:
            continue


def walk(chance, name):
    limit = random_limit(chance, name)
    state, now, steps = limit.rule.EMPTY, chance.choice([0, 5, 1_700_000_000_000_000]), []
    for _ in range(40):
        now = next_instant(chance, limit, now)
        cost = chance.choice([1, 1, 1, 2, limit.capacity, limit.capacity + 1])
        if name == "sliding_log":
            cost = min(cost, 301)
        state, allowed = limit.rule.decide(state, now, limit, cost)
        wait = limit.rule.delay(state, now, limit, cost)
        steps.append([str(now), str(cost), told(state), allowed, str(wait)])
    return {
        "algorithm": name, "count": limit.count, "micros": limit.micros, "burst": limit.burst, "slices": limit.slices,
        "unit": str(limit.unit), "drain": str(limit.drain), "steps": steps, "calendar": calendar_around(limit, steps),
    }  # fmt: skip


def calendar_around(limit, steps):
    """The edges of the windows that a walk is in; None of a limit without a calendar."""
    if limit.calendar is None:
        return None
    instants = [int(at) for at, *_ in steps]
    first, last = limit.calendar.index(min(instants)), limit.calendar.index(max(instants)) + 2
    return {"first": first, "edges": [limit.calendar.start(number) for number in range(first, last)]}


def walks_of_all(each):
    chance = random.Random(7)
    return json.dumps([walk(chance, name) for name in PLAYED for _ in range(each)])


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_the_page_decides_what_python_decides():
    """tests/real/test_report_page.py does the same in a browser."""
    each = tier.steps(150, 30)
    command = ["node", "-e", f"{IN_NODE}\n{RUNNER}", str(RULES_JS)]
    done = subprocess.run(command, input=walks_of_all(each), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"walks": each * len(PLAYED), "wrong": []}


DECIDE = """
Object.assign(globalThis, require(process.argv[1]));
const { readCalls, decideAll, playable, calendarOf } = require(process.argv[2]);
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(({ played, algorithm }) => {
  if (!playable(played.micros).includes(algorithm)) return algorithm;
  const settings = { ...played, calendar: calendarOf(played, played.micros) };
  const { admitted, lost, hit } = decideAll(algorithm, settings, readCalls(played));
  return [admitted, lost, hit];
})));
"""
CLIENTS = ["1.1.1.1", "2.2.2.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "old.example"]


def random_text(chance, algorithm):
    if algorithm == "calendar_window":
        unit = chance.choice(["day", "week", "month", "year"])
        return f"{chance.randrange(1, 9)}/{unit} calendar {chance.choice(ZONES)}"
    words = {
        "first_use_window": "first-use",
        "sliding_window": chance.choice(["sliding_window", "sliding_window slices 4"]),
    }
    period = chance.choice(["10 seconds", "minute", "7 days"])
    return f"{chance.randrange(1, 9)} per {period} {words.get(algorithm, algorithm)}"


def played_in(page):
    return json.loads(re.search(r'id="played">(.*?)</script>', page, re.S)[1])


def decide_in_node(cases):
    command = ["node", "-e", DECIDE, str(RULES_JS), str(PAGE / "decide.js")]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_the_page_decides_a_log_as_the_command_does(tmp_path):
    """Random logs: IPv6 networks, costs, queues, calendars, and windows that begin long before the log does."""
    chance = random.Random(11)
    cases, expected = [], []
    for number in range(tier.examples(60)):
        algorithm = chance.choice(PLAYED)
        start, path = chance.randrange(10**9, 2 * 10**9), tmp_path / f"{number}.json"
        limit = random_text(chance, algorithm)
        lasts = chance.choice([3, 400]) * 86_400 if algorithm == "calendar_window" else 400
        rows = [(start + chance.randrange(lasts), chance.choice(CLIENTS)) for _ in range(120)]
        path.write_text("".join(json.dumps({"ts": at, "ip": ip, "path": "/"}) + "\n" for at, ip in sorted(rows)))
        rule = {"by": chance.choice(["ip", "all"]), "limit": limit, "cost": chance.choice([1, 1, 3])}
        if algorithm == "leaky_bucket":
            rule["max_delay"] = chance.choice(["30 seconds", "5 seconds", "10 minutes"])
        result = lab.replay(path, {"rules": [{"name": "only", **rule}]})
        cases.append({"algorithm": algorithm, "played": played_in(replay_page(result))})
        expected.append([result.requests - result.refused, result.refused])
    assert [row[:2] for row in decide_in_node(cases)] == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_the_page_decides_calls_with_costs_as_a_simulation_does():
    chance = random.Random(12)
    cases, expected = [], []
    for _ in range(tier.examples(40)):
        start = chance.choice([0, chance.randrange(10**9)])
        algorithm = chance.choice(PLAYED)
        limit = random_text(chance, algorithm)
        lasts = 90 * 86_400 if algorithm == "calendar_window" else 90
        calls = [
            (start + chance.random() * lasts, chance.choice("abc"), chance.choice([1, 1, 2, 5])) for _ in range(80)
        ]
        simulation = lab.simulate(limit, recorded(calls), shared=chance.choice([True, False]))
        cases.append({"algorithm": algorithm, "played": played_in(simulation_page(simulation))})
        (lane,) = simulation.lanes
        expected.append([lane.admitted, lane.refused])
    assert [row[:2] for row in decide_in_node(cases)] == expected

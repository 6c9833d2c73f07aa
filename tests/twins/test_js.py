"""The rules in the report's page, in a real engine, beside the Python rules: the same step by step."""

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

import ratekeeper.lab
from ratekeeper import InvalidLimit, Limit
from ratekeeper.algorithms import ALGORITHMS, BUCKETS

RULES_JS = Path(ratekeeper.lab.__file__).parent / "page" / "rules.js"
IN_NODE = """
const { RULES, makeLimit, delay } = require(process.argv[1]);
const walks = JSON.parse(require("fs").readFileSync(0, "utf8"));
const tell = console.log;
"""
RUNNER = """
const text = (state) => Array.isArray(state) ? state.map(String) : String(state);
const wrong = [];
for (const [number, walk] of walks.entries()) {
  const limit = makeLimit(walk.algorithm, walk.count, walk.micros, walk.burst, walk.slices);
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


def random_limit(chance, name):
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
        near, far = chance.randrange(1 + limit.micros // limit.count), chance.randrange(limit.micros)
        jump = chance.choice([0, 0, 1, near, far, 3 * limit.micros])
        now = max(0, now + jump if chance.random() < 0.95 else now - chance.randrange(limit.micros))  # clocks step back
        cost = chance.choice([1, 1, 1, 2, limit.capacity, limit.capacity + 1])
        if name == "sliding_log":
            cost = min(cost, 301)
        state, allowed = limit.rule.decide(state, now, limit, cost)
        wait = limit.rule.delay(state, now, limit, cost)
        steps.append([str(now), str(cost), told(state), allowed, str(wait)])
    return {
        "algorithm": name, "count": limit.count, "micros": limit.micros, "burst": limit.burst, "slices": limit.slices,
        "unit": str(limit.unit), "drain": str(limit.drain), "steps": steps,
    }  # fmt: skip


def walks_of_all(each):
    chance = random.Random(7)
    return json.dumps([walk(chance, name) for name in ALGORITHMS for _ in range(each)])


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_the_page_decides_what_python_decides():
    """tests/real/test_report_page.py does the same in a browser."""
    command = ["node", "-e", f"{IN_NODE}\n{RUNNER}", str(RULES_JS)]
    done = subprocess.run(command, input=walks_of_all(150), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"walks": 900, "wrong": []}

"""The playground of the site shows the figures that Python gives."""

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from ratekeeper import Limit, Limiter
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.calendars import calendar_of
from ratekeeper.testing import FakeClock
from tests.twins.test_js import PLAYED, RULES_JS, random_limit

METER_JS = Path(__file__).parents[2] / "docs" / "playground" / "meter.js"
RUNNER = """
Object.assign(globalThis, require(process.argv[1]), { BUCKETS: new Set(["token_bucket", "leaky_bucket", "gcra"]) });
const { makeLane, remaining, retryAfter, call, pythonLine, utcCalendar } = require(process.argv[2]);
const { walks, lines, calendars = [] } = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify({
  walks: walks.map(({ algorithm, settings, steps }) => {
    const lane = makeLane(algorithm, settings);
    return steps.map(([at, cost]) => {
      const now = BigInt(at), { allowed, delay } = call(lane, now, BigInt(cost));
      const wait = allowed ? 0n : retryAfter(lane, now, BigInt(cost));
      return [allowed, Number(remaining(lane, now)), String(wait), String(delay)];
    });
  }),
  calendars: calendars.map((micros) => utcCalendar(micros).edges),
  lines: lines.map(([algorithm, settings, period]) => pythonLine(algorithm, settings, period)),
}));
"""
PERIODS = {"second": 1, "5 seconds": 5, "10 seconds": 10, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no node here")


def in_node(**given):
    command = ["node", "-e", RUNNER, str(RULES_JS), str(METER_JS)]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def micros(seconds):
    return "null" if seconds is None else str(round(seconds * 1_000_000))


def settings_of(limit):
    return {"count": limit.count, "micros": limit.micros, "burst": limit.burst, "slices": limit.slices}


def random_walk(chance, name):
    """Random calls to a Limiter: what was asked, and what it answered."""
    limit = random_limit(chance, name)
    if name == "calendar_window":
        limit = Limit.parse(f"{chance.choice([1, 2, 7])}/{chance.choice(['day', 'week', 'month'])} calendar")
    steps, answers, now = [], [], 0
    clock = FakeClock()
    limiter = Limiter(limit, clock=clock)
    for _ in range(25):
        wait = chance.choice([0, 1, limit.micros // limit.count, limit.micros, chance.randrange(2 * limit.micros)])
        now += wait
        clock.advance(wait / 1_000_000)
        cost = chance.choice([1, 1, 2, min(limit.capacity, 300)])
        steps.append([now, cost])
        decision = limiter.check("k", cost=cost)
        answers.append([decision.allowed, decision.remaining, micros(decision.retry_after), micros(decision.delay)])
    return {"algorithm": name, "settings": settings_of(limit), "steps": steps}, answers


def test_the_figures_are_those_of_python():
    chance = random.Random(5)
    walks, answers = zip(*[random_walk(chance, name) for name in PLAYED for _ in range(25)], strict=True)
    assert in_node(walks=walks, lines=[])["walks"] == list(answers)


def test_the_line_to_copy_makes_the_limit_that_is_shown():
    """Also without a burst, with one, with slices, and in every period of the page."""
    shown = []
    for name in ALGORITHMS:
        for period in PERIODS:
            for burst, slices in ((10, 1), (25, 4)):
                shown.append([name, {"count": 10, "burst": burst, "slices": slices}, period])
    for line, (name, settings, period) in zip(in_node(walks=[], lines=shown)["lines"], shown, strict=True):
        limit = eval(line, {"Limiter": Limit})  # the arguments are those of a Limit
        assert (limit.algorithm, limit.count, limit.micros) == (name, 10, PERIODS[period] * 1_000_000)
        assert limit.burst == (settings["burst"] if name in ("gcra", "token_bucket", "leaky_bucket") else 10)
        assert limit.slices == (settings["slices"] if name == "sliding_window" else 1)


def test_the_line_of_a_window_to_copy_makes_the_limit_that_is_shown():
    shown = [["first_use_window", {"count": 10}, period] for period in [*PERIODS, "month"]]
    shown += [["calendar_window", {"count": 10}, period] for period in ("day", "week", "month")]
    for line, (name, _, period) in zip(in_node(walks=[], lines=shown)["lines"], shown, strict=True):
        limit = eval(line, {"Limiter": Limit.parse})
        seconds = PERIODS.get(period, 31 * 86_400)
        assert (limit.algorithm, limit.count, limit.micros, limit.timezone) == (
            name, 10, seconds * 1_000_000, "UTC" if name == "calendar_window" else None,
        )  # fmt: skip


def test_the_calendar_of_the_page_is_that_of_python():
    days = {"day": 1, "week": 7, "month": 31}
    lists = in_node(walks=[], lines=[], calendars=[count * 86_400_000_000 for count in days.values()])["calendars"]
    for unit, edges in zip(days, lists, strict=True):
        assert edges == list(calendar_of(unit, "UTC", "here").edges[: len(edges)])
        assert edges[-1] >= 60 * 365 * 86_400_000_000

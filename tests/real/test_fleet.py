"""Four processes of 64 tasks on one server whose scripts are flushed all the time: exactly the limit, in one order."""

import asyncio
import contextlib
import copy
import itertools
import os

import pytest

from ratekeeper import Limit
from tests.laws.models import model_of
from tests.real.fleet import admit, open_store, plans, record, run_fleet
from tests.real.load import Beside

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
prefixes = itertools.count()


class Flusher(Beside):
    """SCRIPT FLUSH every few milliseconds."""

    times = 0

    def __init__(self, server):
        super().__init__()
        self.client = server.client()

    def step(self):
        if not self.over.wait(0.003):
            self.client.script_flush()
            self.times += 1


def test_a_fleet_admits_exactly_the_limit_while_scripts_are_flushed(any_server):
    count, calls = (600, 3) if SHORT else (10_000, 50)
    prefix = f"fleet{next(prefixes)}"
    with Flusher(any_server) as flusher:
        seen = run_fleet(admit, any_server.url, prefix, count, calls)
    assert flusher.times > 20
    admitted = {name: sum(each[name] for each in seen) for name in plans(count)}
    assert admitted == {name: expected for name, (_, expected) in plans(count).items()}

    async def used():
        store = open_store(any_server.url, prefix)
        found = {}
        for name, (plan, _) in plans(count).items():
            found[name] = {part.limit - part.remaining for answer in await store.peek(plan) for part in answer.parts()}
        await store.close()
        return found

    # All of a plan's states are equal, in what is used: each took what was admitted, and nothing for what was refused.
    left = asyncio.run(used())
    hourly = left.pop("three limits")  # of its three limits the hourly one recovers meanwhile
    assert count in hourly
    assert left == {name: {expected} for name, (_, expected) in plans(count).items() if name in left}
    client = any_server.client()
    names = list(client.scan_iter(f"{prefix}:*"))
    assert len(names) > 10
    assert all(client.pttl(name) > 0 for name in names)


STEP = 2000  # microseconds by which the server's clock may step back
MOST_STEPS = 10  # in one history

# Limits that refill while the history is made, so that admissions and refusals alternate.
TEXTS = [
    "200/second burst 20",
    "97/second token_bucket",
    "50/second leaky_bucket",
    "40 per 300 milliseconds fixed_window",
    "60 per 500 milliseconds sliding_window",
    "50 per 400 milliseconds sliding_log",
]


def test_what_several_processes_saw_is_one_order_that_the_model_agrees_with(any_server):
    """Linearizability: one order of all calls explains every answer, and agrees with real time."""
    with Flusher(any_server):
        seen = run_fleet(record, any_server.url, f"fleet{next(prefixes)}", TEXTS, 1.5 if SHORT else 15)
    calls = admitted = 0
    for index, text in enumerate(TEXTS):
        history = [call[1:] for each in seen for call in each if call[0] == index]
        assert linear(Limit.parse(text), history)[0] == len(history)
        calls += len(history)
        admitted += sum(call[3] for call in history)
    assert 20 < admitted < calls  # of all limits: a slow machine may never exhaust a single one


class Unexplained(AssertionError):
    """No order explains a call."""


def linear(limit, history):
    """How many calls one order explains, and by how many microseconds the server's clock stepped back in it, at most.

    Each call is replayed on the exact model, at the server's instant that it was told.  Usually the order is that of
    the instants.  But clocks of virtual machines step back by some hundred microseconds now and then: then a call may
    have been decided before one of an earlier instant, and the model says what it must be told.
    """
    return replay(model_of(limit), sorted(history, key=lambda call: -call[5]), 0, MOST_STEPS)


def replay(model, later, latest_start, steps):
    """Replay the calls, whose last one is the earliest; their number, and the longest of at most so many steps back."""
    explained = stepped = 0
    while later:
        now, first = later[-1][5], len(later) - 1
        while first and later[first - 1][5] == now:
            first -= 1
        # Of one instant, the order is what the answers leave: what remains after one is what remained before the next.
        by_rest = sorted(range(first, len(later)), key=lambda number: -later[number][4])
        number = next((number for number in by_rest if is_true(model, later[number])), None)
        if number is None:
            waiting = later[first:]
            for number in range(first - 1, -1, -1):
                ahead = later[number][5] - now
                if ahead > STEP or not steps:
                    break
                if is_true(model, later[number]):
                    with contextlib.suppress(AssertionError):
                        other, rest = copy.deepcopy(model), later[:number] + later[number + 1 :]
                        started = take(other, later[number], latest_start)
                        more, longest = replay(other, rest, started, steps - 1)
                        return explained + 1 + more, max(stepped, ahead, longest)
            raise Unexplained(f"no order explains {waiting} at {now}, {model.remaining(now)} remaining")
        latest_start = take(model, later.pop(number), latest_start)
        explained += 1
    return explained, stepped


def is_true(model, call):
    """Whether the model tells this call the same, here and now."""
    _, _, cost, allowed, remaining, now = call
    return allowed == model.fits(now, cost) and remaining == model.remaining(now) - cost * allowed


def take(model, call, latest_start):
    """Decide a call, which must not have ended before another began that is ordered before it."""
    began, ended, cost, _, _, now = call
    assert ended > latest_start, f"{call} ended before another began that is ordered before it"
    model.decide(now, cost)
    return max(latest_start, began)


def test_a_wrong_history_is_found():
    """The checker itself: one admission too many, and an order against real time."""
    limit = Limit.parse("2/second fixed_window")
    good = [(0, 1, 1, True, 1, 10), (0, 2, 1, True, 0, 10), (1, 3, 1, False, 0, 11)]
    assert linear(limit, good) == (3, 0)
    with pytest.raises(AssertionError, match="no order explains"):
        linear(limit, [*good, (2, 4, 1, True, 0, 12)])
    with pytest.raises(AssertionError, match="ended before"):
        linear(limit, [(7, 9, 1, True, 1, 10), (0, 2, 1, True, 0, 20)])


def test_a_clock_that_stepped_back_is_told_from_a_wrong_history():
    """Seen on a virtual machine: one call was decided by a clock 182 microseconds ahead, the next ones were not."""
    limit = Limit.parse("200/second burst 20")
    seen = [
        (0, 9_000, 12, True, 8, 1000),
        (1_000, 10_000, 2, True, 6, 1182),
        (1_000, 9_500, 1, True, 5, 1000),
        (1_000, 9_500, 1, True, 4, 1000),
        (1_000, 9_500, 2, True, 2, 1000),
        (11_000, 12_000, 3, False, 2, 1700),
    ]
    assert linear(limit, seen) == (6, 182)
    with pytest.raises(Unexplained):  # the same, but what they say was counted was not counted by anybody
        linear(limit, [seen[0], *seen[2:]])
    with pytest.raises(Unexplained):  # a step of half a second is no tremble
        linear(limit, [seen[0], (*seen[1][:5], 501_182), *seen[2:]])
    with pytest.raises(AssertionError):  # against real time: that call began after the others had ended
        linear(limit, [seen[0], (9_900, 10_000, *seen[1][2:]), *seen[2:]])

"""Four processes of 64 tasks on one server whose scripts are flushed all the time: exactly the limit, in one order."""

import asyncio
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
        assert linear(Limit.parse(text), history) == len(history)
        calls += len(history)
        admitted += sum(call[3] for call in history)
    assert 20 < admitted < calls  # of all limits: a slow machine may never exhaust a single one


class Unexplained(AssertionError):
    """No order explains a call; ``at`` is its instant."""

    def __init__(self, message, at):
        super().__init__(message)
        self.at = at


def clock_was_ahead(history, at, near=5_000):
    """Microseconds by which the server's clock was ahead, at least, within ``near`` of the instant ``at``; or 0.

    All processes share a machine, so the server's clock and that of the calls differ by a constant.  A call that was
    sent before its instant bounds the difference.  A call that was answered before its instant, by that difference,
    was decided by a clock that was ahead and came back later: such calls have another order than their instants.
    """
    differs = min(call[5] * 1000 - call[0] for call in history)
    ahead = [call[5] * 1000 - call[1] - differs for call in history if abs(call[5] - at) <= near]
    return max(0, *ahead) / 1000


def linear(limit, history):
    """Replay a history on the exact model in the order of the server's instants; how many calls were explained.

    Calls of one instant stand in the one order their answers leave: what an admission says remains is what remained
    before it, less its cost; refusals change nothing.
    """
    model = model_of(limit)
    explained, latest_start = 0, 0
    for now, group in itertools.groupby(sorted(history, key=lambda call: call[5]), key=lambda call: call[5]):
        waiting = sorted(group, key=lambda call: -call[4])
        while waiting:
            for call in waiting:
                _, _, cost, allowed, remaining, _ = call
                before = model.remaining(now)
                if not allowed and not model.fits(now, cost) and remaining == before:
                    break
                if allowed and model.fits(now, cost) and remaining == before - cost:
                    model.record(now, cost)
                    break
            else:
                raise Unexplained(f"{limit}: no order explains {waiting} at {now}, {before} remaining", now)
            waiting.remove(call)
            began, ended = call[:2]
            assert ended > latest_start, f"{limit}: {call} ended before another began that is ordered before it"
            latest_start = max(latest_start, began)
            explained += 1
    return explained


def test_a_wrong_history_is_found():
    """The checker itself: one admission too many, and an order against real time."""
    limit = Limit.parse("2/second fixed_window")
    good = [(0, 1, 1, True, 1, 10), (0, 2, 1, True, 0, 10), (1, 3, 1, False, 0, 11)]
    assert linear(limit, good) == 3
    with pytest.raises(AssertionError, match="no order explains"):
        linear(limit, [*good, (2, 4, 1, True, 0, 12)])
    with pytest.raises(AssertionError, match="ended before"):
        linear(limit, [(7, 9, 1, True, 1, 10), (0, 2, 1, True, 0, 20)])


def test_a_clock_that_was_ahead_is_told_from_a_wrong_history():
    """Seen on a virtual machine: two calls were decided by a clock 159 microseconds ahead, the next one was not."""
    limit = Limit.parse("2/second fixed_window")
    steady = [(1_000_000 * n, 1_000_000 * n + 500_000, 1, False, 0, 1000 * n + 250) for n in range(2, 9)]
    full = [(0, 400_000, 2, True, 0, 100), *steady]
    assert linear(limit, full) == 8
    # Decided after the admission, by a clock that had come back: its instant is earlier.
    early = [(0, 400_000, 2, True, 0, 900), (450_000, 700_000, 1, False, 0, 600), *steady]
    with pytest.raises(Unexplained) as caught:
        linear(limit, early)
    assert clock_was_ahead(early, caught.value.at) == 350.0
    doubled = [(0, 400_000, 1, True, 0, 100), *steady]  # one call counted twice: the clock is not to blame
    with pytest.raises(Unexplained) as caught:
        linear(limit, doubled)
    assert clock_was_ahead(doubled, caught.value.at) == 0

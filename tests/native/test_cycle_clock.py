"""The clock of tables in this process: never ahead of the system's, hardly behind it, and switched off at will."""

import os
import subprocess
import sys
import threading
from time import monotonic_ns

import pytest

from ratekeeper import Limiter, MemoryStore, info, native
from ratekeeper.algorithms import ALGORITHMS
from tests import tier
from tests.native.build import compiled, run

BEHIND = 200  # nanoseconds: the bound that docs/explain/native.md states
counts = pytest.mark.skipif(native.CLOCK != native.COUNTER, reason=f"no counter is used here: {native.CLOCK_REASON}")


@pytest.mark.parametrize("events", [0, 1])
def test_no_law_of_the_clock_breaks_in_a_simulated_machine(events):
    """With its rate adjusted all the time; with EVENTS suspended, moved to other machines, and the time of day set."""
    program = compiled("cycle_clock", "-O1", "-fsanitize=undefined", "-fno-sanitize-recover")
    for seed in range(1, tier.steps(30, 3) + 1):
        done = run(program, seed, tier.steps(1_000_000, 300_000), events)
        assert done.returncode == 0, (seed, done.stdout, done.stderr)
        assert int(done.stdout.split()[4]) > 100_000, "the counter was hardly used"


@counts
@pytest.mark.parametrize("wall", [False, True])
def test_it_is_within_its_bound_of_the_clock_of_this_machine(wall):
    native.core.compare_clocks(wall, tier.steps(500_000))  # long enough to measure the rate
    ahead, behind, back, counted = native.core.compare_clocks(wall, tier.steps(2_000_000))
    assert (ahead, behind <= BEHIND, back if not wall else 0) == (0, True, 0), behind
    assert counted > 0


@counts
def test_a_child_goes_on_within_the_bound():
    native.core.compare_clocks(False, 100_000)
    pid = os.fork()
    if not pid:
        ahead, behind, back, _ = native.core.compare_clocks(False, 100_000)
        os._exit(ahead > 0 or behind > BEHIND or back > 0)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(native.core is None, reason=native.REASON)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_instants_never_go_back_whichever_way_a_decision_takes(algorithm):
    """Through a table, a plan of one and a plan of two, from threads that take turns all the time."""
    store = MemoryStore()
    limiter = Limiter("1000000/second", algorithm=algorithm, store=store)
    plan = store.prepare(((limiter.name, limiter.limits, 1), ("other", limiter.limits, 1)))
    instants: list[int] = []

    def decide():
        for _ in range(tier.steps(3000)):
            with gate:
                instants.append(limiter.check("k").at)
                instants.append(limiter.peek("k").at)
                instants.append(plan.check(("k", "k"))[1][0].at)

    gate = threading.Lock()
    threads = [threading.Thread(target=decide) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if algorithm != "fixed_window":  # the time of day may be set
        assert instants == sorted(instants)
        assert instants[-1] <= monotonic_ns() // 1000


@pytest.mark.parametrize("algorithm", ["gcra", "token_bucket", "sliding_log", "sliding_window"])
def test_who_waits_retry_after_by_the_monotonic_clock_is_admitted(algorithm):
    """Promise 2 in real time: the wait is measured by a clock that is not the counter."""
    limiter = Limiter("1 per 50 microseconds", algorithm=algorithm)
    for turn in range(tier.steps(20_000)):
        key = f"k{turn % 7}"
        decision = limiter.check(key)
        while not decision.allowed:
            until = monotonic_ns() + round(decision.retry_after * 1e9)
            while monotonic_ns() < until:
                pass
            again = limiter.check(key)
            assert again.allowed, (turn, decision.retry_after, again.retry_after)
            decision = again


def started(clock):
    script = "import ratekeeper; print(ratekeeper.info()['clock']); print(ratekeeper.info()['clock_reason'])"
    environment = {**os.environ, "RATEKEEPER_CLOCK": clock}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)


def test_the_environment_switches_the_counter_off():
    off = "RATEKEEPER_CLOCK is monotonic" if native.core is not None else "the Python engine reads no other"
    assert started("monotonic").stdout.splitlines() == ["monotonic", off]
    assert started("counter").stdout.splitlines() == [info()["clock"], info()["clock_reason"]]


def test_another_word_in_the_environment_is_an_error():
    assert "RATEKEEPER_CLOCK: expected counter or monotonic, got 'sundial'." in started("sundial").stderr


@pytest.mark.skipif(native.core is None, reason=native.REASON)
def test_the_counter_can_be_switched_off_and_on_while_it_runs():
    try:
        assert native.core.use_counter(False) == "it was not asked for"
        ahead, behind, back, counted = native.core.compare_clocks(False, 10_000)
        assert (ahead, behind, back, counted) == (0, 0, 0, 0)
    finally:
        native.core.use_counter(native.CLOCK == native.COUNTER)

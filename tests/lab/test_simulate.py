"""simulate: the same decisions as production, figures that are true, shapes that are what they say."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from ratekeeper import InvalidInput, Limiter, lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.lab import decide_batch, measure
from ratekeeper.lab.simulate import parse_lanes
from ratekeeper.testing import FakeClock
from tests import tier


def only_lane(limits, *args, **options):
    (lane,) = lab.simulate(limits, *args, **options).lanes
    return lane


@pytest.mark.parametrize("shape", lab.SHAPES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_lane_decides_what_a_limiter_decides(name, shape):
    traffic = lab.traffic(shape, "7/second", seconds=8, clients=3, seed=5)
    lane = only_lane(f"7/second {name}", traffic)
    clock = FakeClock()
    limiter = Limiter("7/second", algorithm=name, clock=clock)
    pending = [(at, number, 0, traffic.who[number]) for number, at in enumerate(traffic.times)]
    admitted = refused = fresh = 0
    while pending:
        pending.sort()
        at, _, attempt, client = pending.pop(0)
        clock.move_to(at)
        decision = limiter.check(traffic.clients[client])
        admitted += decision.allowed
        refused += not decision.allowed
        if not decision.allowed and traffic.retry and attempt < traffic.retry.attempts:
            fresh += 1
            after = traffic.retry.every or round(decision.retry_after * 1_000_000)
            pending.append((at + after, len(traffic) + fresh, attempt + 1, client))
    assert (lane.admitted, lane.refused) == (admitted, refused)
    assert lane.calls == lane.asked == admitted + refused
    bins = lane.asked_in_bin, lane.admitted_in_bin, lane.refused_in_bin
    assert [sum(counts) for counts in bins] == [lane.asked, admitted, refused]


@pytest.mark.parametrize("shape", lab.SHAPES)
def test_the_documented_bounds_hold(shape):
    lanes = {lane.algorithm: lane for lane in lab.simulate("20/second", shape, algorithms=ALGORITHMS).lanes}
    assert lanes["fixed_window"].worst_window_ratio <= 2
    assert lanes["sliding_window"].worst_window_ratio <= 2
    assert lanes["sliding_log"].worst_window_ratio <= 1
    assert lanes["gcra"].worst_window_ratio <= 2  # burst + rate * period
    assert lanes["leaky_bucket"].worst_window_ratio <= 1.05  # one more than the count: both ends of the period
    assert lanes["sliding_log"].wrongly_admitted == lanes["sliding_log"].wrongly_refused == 0
    assert lanes["gcra"].admitted == lanes["token_bucket"].admitted
    assert lanes["leaky_bucket"].longest_delay <= 1.0
    assert all(not lanes[name].longest_delay for name in lanes if name != "leaky_bucket")
    assert all(0 < lane.fairness <= 1.0000001 for lane in lanes.values())


def test_the_boundary_doubles_a_fixed_window_and_nothing_else():
    lanes = {lane.algorithm: lane for lane in lab.simulate("50/minute", "boundary", algorithms=ALGORITHMS).lanes}
    assert lanes["fixed_window"].worst_window == 100
    assert lanes["fixed_window"].worst_second == 100
    assert lanes["fixed_window"].wrongly_admitted == lanes["fixed_window"].admitted // 2
    assert [lanes[name].worst_window for name in ("sliding_log", "sliding_window", "gcra")] == [50, 50, 50]


def test_an_abuser_harms_others_only_under_a_shared_limit():
    apart = only_lane("20/second", "abuser", clients=20)
    shared = only_lane("20/second", "abuser", clients=20, shared=True)
    assert apart.fairness > 0.999
    assert shared.fairness < 0.8
    assert shared.worst_window <= 40


def test_costs_are_added_up():
    traffic = lab.recorded([(0.0, "a", 6), (0.1, "a", 5), (0.2, "a", 4), (0.3, "b", 11)])
    lane = only_lane("10/minute sliding_log", traffic)
    assert (lane.calls, lane.asked, lane.admitted, lane.refused) == (4, 26, 10, 16)
    assert lane.worst_window == lane.worst_second == 10
    assert (lane.wrongly_admitted, lane.wrongly_refused) == (0, 0)
    assert lane.state_bytes == 40  # ten instants of one client, none of the other


def test_fairness_uses_the_cost_of_each_client():
    """A leaky bucket has turns in another order than calls, but costs stay with their clients."""
    calls = [(0.0, "a", 1), (0.0, "a", 9), (0.1, "b", 2), (0.2, "a", 5)]
    lane = only_lane("10/minute leaky_bucket", lab.recorded(calls))
    assert (lane.admitted, lane.refused) == (12, 5)
    assert lane.fairness == 1.0


def test_several_limits_apply_together():
    lane = only_lane([["5/second fixed_window", "8/minute sliding_log"]], "steady", load=2, clients=1, seconds=10)
    assert lane.admitted == 8
    assert lane.algorithm == "fixed_window + sliding_log"
    assert lane.wrong == 0


def test_a_recorded_trace_keeps_its_place_in_the_day():
    traffic = lab.recorded([(86_400 * 3 + 59.5, "a"), (86_400 * 3 + 60.5, "b"), (86_400 * 3 + 60.0, "a")])
    assert list(traffic.times) == [59_500_000, 60_000_000, 60_500_000]
    assert [traffic.clients[number] for number in traffic.who] == ["a", "a", "b"]
    assert traffic.costs is None
    assert only_lane("1/minute fixed_window", traffic).admitted == 3


def test_the_same_seed_gives_the_same_and_another_does_not():
    first, again, other = (lab.traffic("poisson", seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.times != other.times


def test_rows_and_json_are_plain():
    simulation = lab.simulate("10/second", "burst")
    (row,) = simulation.rows()
    assert {type(value) for value in row.values()} <= {int, float, str}
    assert row["worst_window"] == simulation.lanes[0].worst_window
    assert simulation.to_json()["traffic"] == {
        "name": "burst", "calls": len(simulation.traffic), "clients": 3, "seconds": 12.0, "seed": 1, "shared": False
    }  # fmt: skip


def test_progress_is_reported():
    reports = []
    lab.simulate("10/second", "burst", progress=lambda *words: reports.append(words))
    assert reports == [("10/second", 360, 360, 360)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"traffic": "bursts"}, "traffic: expected a shape (steady, burst, on_off, poisson, diurnal, boundary, "
         "retry_storm, herd, abuser), got 'bursts'. Did you mean 'burst'?"),
        ({"load": 0}, "traffic: expected a load above 0, in multiples of the limit's rate, got 0."),
        ({"clients": 0}, "traffic: expected at least 1 client and some time, got 0 clients, None s."),
        ({"seconds": 10**9}, "traffic: expected at most 50,000,000 calls, got about 100,000,000,000. "
         "Use fewer clients, less load or less time."),
        ({"limits": []}, "simulate: expected at least one limit, got an empty list."),
        ({"limits": "unlimited"}, "simulate: expected a limit per time, such as '100/minute', got 'unlimited'."),
        ({"limits": "5 concurrent"}, "simulate: expected a limit per time, such as '100/minute', got '5 concurrent'."),
        ({"algorithms": ["leaky"]}, "simulate: expected an algorithm (fixed_window, sliding_log, sliding_window, "
         "token_bucket, leaky_bucket, gcra), got 'leaky'. Did you mean 'leaky_bucket'?"),
        ({"algorithms": []}, "simulate: expected at least one algorithm (fixed_window, sliding_log, sliding_window, "
         "token_bucket, leaky_bucket, gcra), got none."),
    ],
)  # fmt: skip
def test_errors_in_arguments(wrong, message):
    options = {"limits": "10/second", "traffic": "poisson", **wrong}
    with pytest.raises(InvalidInput) as error:
        lab.simulate(options.pop("limits"), options.pop("traffic"), **options)
    assert str(error.value) == message


def test_options_of_a_shape_together_with_traffic_raise():
    with pytest.raises(InvalidInput, match="expected load, clients and seconds with the name of a shape"):
        lab.simulate("10/second", lab.traffic("burst"), load=2)


def test_an_algorithm_without_bursts_drops_the_burst():
    lanes = parse_lanes(["10/second burst 30"], ["gcra", "fixed_window"])
    assert [str(lane) for lane in lanes] == ["10/second burst 30", "10/second fixed_window"]


def test_importing_ratekeeper_does_not_import_the_lab():
    script = "import sys, ratekeeper; print('ratekeeper.lab' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.full  # whole simulations, twice
@pytest.mark.parametrize("shape", ["on_off", "herd", "retry_storm", "abuser"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_core_and_python_give_the_same_figures(shape, shared, monkeypatch):
    traffic = lab.traffic(shape, "50/second burst 20", clients=8, seconds=tier.steps(30), seed=2)
    native = lab.simulate("50/second burst 20", traffic, algorithms=ALGORITHMS, shared=shared).lanes
    for module in (measure, decide_batch):
        monkeypatch.setattr(module, "core", None)
    assert lab.simulate("50/second burst 20", traffic, algorithms=ALGORITHMS, shared=shared).lanes == native
    json.dumps([asdict(lane) for lane in native])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"limits": 5},
            "limits: expected a limit such as '100/minute' or a list of limits, got 5. "
            "Write a period too, such as '5/minute'.",
        ),
        ({"traffic": 5}, "traffic: expected the name of a shape, or Traffic, got 5."),
        ({"clients": 1.5}, "traffic: expected at least 1 client and some time, got 1.5 clients, None s."),
        ({"load": "high"}, "traffic: expected a load above 0, in multiples of the limit's rate, got 'high'."),
        ({"store": 5}, "store: expected a URL such as 'redis://localhost:6379/0', got int."),
    ],
)
def test_arguments_of_the_wrong_type_raise(arguments, message):
    with pytest.raises(InvalidInput) as caught:
        lab.simulate(**{"limits": "5/second", **arguments})
    assert str(caught.value) == message


def test_recorded_calls_meet_the_windows_that_they_met():
    """A window of seven days begins on a Thursday, as 1970 did, wherever the first call lies."""
    monday = 1_700_438_400  # 2023-11-20, a Monday at midnight
    calls = [(monday + day * 86_400, "ann") for day in range(7)]
    (lane,) = lab.simulate("4 per 7 days fixed_window", lab.recorded(calls)).lanes
    assert (lane.admitted, lane.refused) == (7, 0)  # three days of one window, four of the next
    (shared,) = lab.simulate("3 per 7 days fixed_window", lab.recorded(calls)).lanes
    assert shared.refused == 1


def test_leaky_lanes_with_costs_are_as_fair_as_a_bucket():
    calls = [(second / 2, "ann", 1 + second % 3) for second in range(60)] + [(second, "bob", 2) for second in range(30)]
    lanes = lab.simulate(["2/second burst 4 leaky_bucket", "2/second burst 4"], lab.recorded(calls), shared=True).lanes
    assert lanes[0].fairness == lanes[1].fairness < 1.0  # both admit the same calls

"""The figures of the lab, each compared with a slow and obvious computation."""

from array import array
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Limit
from ratekeeper.algorithms import sliding_log
from ratekeeper.lab import measure
from ratekeeper.native import core

calls = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2), st.integers(1, 3), st.booleans()), max_size=60).map(
    lambda rows: sorted(rows, key=lambda call: call[0])
)


def column(rows, place):
    return [call[place] for call in rows]


pairs = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=2)


class Calls(NamedTuple):
    times: list[int]
    who: list[int]
    costs: list[int] | None


@given(calls, pairs, st.booleans(), st.booleans())
def test_accuracy_agrees_with_sliding_logs_of_the_same_history(rows, limits, has_costs, shared):
    # Among a key's calls at one instant the admitted ones come first.
    rows = sorted(rows, key=lambda call: (call[0], not call[3]))
    times, who, allowed = column(rows, 0), column(rows, 1), column(rows, 3)
    costs = column(rows, 2) if has_costs else [1] * len(rows)
    columns = Calls(times, who, costs if has_costs else None)
    accuracy = measure.accuracy(columns, bytearray(allowed), 3, shared, limits, 100)
    past = dict.fromkeys(range(3), ())
    wrongly = {(True, False): 0, (False, True): 0}
    logs = [Limit(count, period / 1_000_000, algorithm="sliding_log") for count, period in limits]
    for at, client, cost, passed in zip(times, who, costs, allowed, strict=True):
        key = 0 if shared else client
        fits = all(sliding_log.decide(past[key], at, limit, cost)[1] for limit in logs)
        if fits != passed:
            wrongly[passed, fits] += 1
        if passed:
            past[key] += (at,) * cost
    most = [
        max(
            [sum(at - period < other <= at for other in history) for history in past.values() for at in history],
            default=0,
        )
        for _, period in limits
    ]
    shut_out = measure.longest_shut_out(times, who, allowed, 100)
    assert accuracy == (wrongly[True, False], wrongly[False, True], most, shut_out)
    if not has_costs:
        flags = bytearray(allowed)
        for limit, worst in zip(limits, most, strict=True):
            single = measure.python_accuracy(columns, flags, 3, shared, limit, 100)
            assert measure.accuracy(columns, flags, 3, shared, [limit], 100) == single
            assert measure.most_of_one_key(times, None if shared else who, flags, 3, limit[1]) == worst
        got, lost = measure.count_by_client(who, flags, 3)
        assert (sum(got), sum(lost)) == (sum(allowed), len(allowed) - sum(allowed))
        assert got == [sum(client == number and flag for client, flag in zip(who, allowed, strict=True))
                       for number in range(3)]  # fmt: skip


@given(calls, st.integers(1, 20), st.booleans())
def test_the_most_within_a_stretch(rows, length, has_costs):
    costs = column(rows, 2) if has_costs else None
    units = [at for at, _, cost, _ in rows for _ in range(cost if has_costs else 1)]
    expected = max([sum(at - length < other <= at for other in units) for at in units], default=0)
    assert measure.most_within(column(rows, 0), costs, length) == expected


@given(calls, st.integers(61, 90))
def test_the_longest_shut_out(rows, end):
    longest = 0
    for number, (at, client, _, passed) in enumerate(rows):
        before = [call for call in rows[:number] if call[1] == client]
        if passed or (before and not before[-1][3]):
            continue
        after = [call[0] for call in rows[number + 1 :] if call[1] == client and call[3]]
        longest = max(longest, (after[0] if after else end) - at)
    assert measure.longest_shut_out(column(rows, 0), column(rows, 1), column(rows, 3), end) == longest


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 100))
def test_fair_shares_are_max_min_fair(asked, total):
    total = min(total, sum(asked))
    shares = [Fraction(share).limit_denominator(10**6) for share in measure.fair_shares(asked, total)]
    assert abs(sum(shares) - total) < Fraction(1, 1000)
    for share, wanted in zip(shares, asked, strict=True):
        assert share <= wanted
        if share < wanted - Fraction(1, 1000):  # a client that wants more gets at least as much as any other
            assert share >= max(shares) - Fraction(1, 1000)


def test_fairness_differs_between_a_shared_limit_and_one_per_client():
    asked = [5, 5, 1000]
    assert measure.fairness(asked, [5, 5, 90]) == 1.0
    assert measure.fairness(asked, [1, 1, 98]) < 0.7
    assert measure.fairness([5, 5], [0, 0]) == 1.0


@given(calls, st.integers(1, 9), st.integers(1, 12), st.booleans())
def test_bins_lose_nothing(rows, width, bins, has_costs):
    costs = column(rows, 2) if has_costs else None
    counts = measure.count_in_bins(column(rows, 0), costs, 0, width, bins)
    assert sum(counts) == (sum(costs) if has_costs else len(rows))
    assert len(counts) == bins
    if bins > 1:
        assert counts[0] == sum((cost if has_costs else 1) for at, _, cost, _ in rows if at < width)


def test_states_are_counted_in_machine_words():
    assert measure.state_bytes(0) == 8
    assert measure.state_bytes(2**64) == 16
    assert measure.state_bytes((1, 2, 3)) == 24
    assert measure.state_bytes((1, (2, 2**70))) == 32


numbers = st.lists(st.tuples(st.integers(0, (1 << 62) - 1) | st.integers(0, 300), st.booleans()), max_size=80)


@given(numbers)
def test_selected_numbers_are_sorted(rows):
    values, flags = [value for value, _ in rows], bytearray(flag for _, flag in rows)
    assert list(measure.select_sorted(values, flags)) == sorted(value for value, flag in rows if flag)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=20))
def test_the_longest_wait(rows):
    times, turns = [at for at, _ in rows], [at + wait for at, wait in rows]
    assert measure.longest_wait(times, turns) == max([wait for _, wait in rows], default=0)


@pytest.mark.skipif(core is None, reason="no native core here")
def test_the_native_figures_reject_invalid_columns():
    times, who, flags = array("q", [1, 2]), array("q", [0, 1]), b"\1\0"
    assert core.judge(times, who, flags, 2, 1, 5, 9) == (0, 1, 1, 7)
    for wrong in [
        (times, who, flags, 1, 1, 5, 9),
        (times, who, flags, 0, 1, 5, 9),
        (times, array("q", [0, -1]), flags, 2, 1, 5, 9),
        (times, array("q", [0]), flags, 2, 1, 5, 9),
        (times, who, b"\1", 2, 1, 5, 9),
        (array("q", [-1, 2]), who, flags, 2, 1, 5, 9),
        (array("i", [1, 2]), who, flags, 2, 1, 5, 9),
        (times, who, flags, 2, 1, 0, 9),
        (times, who, flags, 2, 1, 1 << 62, 9),
        (times, who, flags, 2, 1, 5, -1),
        ([1, 2], who, flags, 2, 1, 5, 9),
        (times, who, bytearray(flags), 2, 1, 5, 9),
    ]:
        with pytest.raises((TypeError, ValueError)):
            core.judge(*wrong)
    for call, wrong in [
        (core.count_each, (who, flags, 1)),
        (core.picked, (times, b"")),
        (core.most_within, (times, 0)),
        (core.most_within, (memoryview(b"12345678"), 1)),
        (core.longest_wait, (times, [1])),
    ]:
        with pytest.raises((TypeError, ValueError)):
            call(*wrong)

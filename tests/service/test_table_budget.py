"""The memory of the limits that callers name: bounded before it is taken, and never by forgetting what was used."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper.limit import Limit, parse_limits
from ratekeeper.service.table_budget import LEAST_KEYS, NoRoom, TableBudget, bytes_of_key
from tests import tier

MEGABYTE = 1_048_576


class Store:
    max_keys = 1_000_000


LIMITS = st.builds(
    lambda count, algorithm: Limit.parse(f"{count}/hour", algorithm),
    st.integers(1, 1024),
    st.sampled_from(["gcra", "sliding_log", "fixed_window", "token_bucket"]),
)


@settings(max_examples=tier.examples(100))
@given(st.integers(1, 64), st.lists(LIMITS, max_size=60))
def test_the_sum_never_exceeds_the_budget(megabytes, limits):
    budget = TableBudget(megabytes * MEGABYTE, 1024)
    taken = 0
    for number, limit in enumerate(limits):
        try:
            keys = budget.reserve(Store, f"space {number}", limit)
        except NoRoom:
            assert taken + LEAST_KEYS * bytes_of_key(limit) > megabytes * MEGABYTE
            continue
        assert LEAST_KEYS <= keys <= Store.max_keys
        taken += keys * bytes_of_key(limit)
    assert budget.total == taken <= megabytes * MEGABYTE


def test_what_is_released_is_free_again():
    budget = TableBudget(64 * MEGABYTE, 1024)
    first = budget.reserve(Store, "a", parse_limits("100/minute"))
    assert budget.reserve(Store, "b", parse_limits("100/minute")) < first
    budget.release("a", parse_limits("100/minute"))
    budget.release("b", parse_limits("100/minute"))
    budget.release("b", parse_limits("100/minute"))
    assert budget.total == 0
    assert budget.reserve(Store, "c", parse_limits("100/minute")) == first


def test_the_same_states_count_once():
    budget = TableBudget(MEGABYTE, 1024)
    budget.reserve(Store, "a", parse_limits("100/minute"))
    total = budget.total
    budget.reserve(Store, "a", parse_limits("100/minute"))
    assert budget.total == total


def test_a_store_elsewhere_takes_nothing_here():
    assert TableBudget(1, 1024).reserve(object(), "a", parse_limits("100/minute")) is None


def test_the_refusals_say_what_to_do():
    with pytest.raises(NoRoom) as error:
        TableBudget(MEGABYTE, 1000).reserve(Store, "a", Limit.parse("1001/day", "sliding_log"))
    assert str(error.value) == (
        "limit: expected a sliding_log of at most 1,000, got '1001/day sliding_log'. "
        "Use sliding_window, or put the limit into the rules file."
    )
    with pytest.raises(NoRoom) as error:
        TableBudget(1000, 1000).reserve(Store, "a", parse_limits("100/day"))
    start = "limit: expected limits whose tables take at most 1,000 bytes in all, got '100/day', which takes "
    assert str(error.value).startswith(start)
    assert str(error.value).endswith(" more, and 0 are taken. Raise --table-memory, or name fewer limits.")


def test_as_many_limits_fit_as_callers_may_name():
    """After 132 limits a budget for 1,024 was used up, as each took a sixteenth of what was left."""
    budget = TableBudget(256 * MEGABYTE // 2, 1024, 1024)
    keys = [budget.reserve(Store, f"space {number}", Limit(5, "hour")) for number in range(1024)]
    assert keys[0] > 100_000
    assert keys == sorted(keys, reverse=True)
    assert keys[-1] >= LEAST_KEYS
    assert budget.total <= 256 * MEGABYTE // 2

"""How limits are kept on Postgres: keys that tell nothing, numbers that fit a bigint, states as the rules have them."""

import random

import pytest

from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.limit import UNLIMITED, Limit, parse_limits
from ratekeeper.stores.postgres.layout import NUMBERS, RowLayout, bounded_cost, limit_numbers, read_state
from ratekeeper.testing.contract import walk_limits
from tests.twins.test_lua import extreme_limit

BIGINT = 2**63


def test_keys_are_digests_that_never_collide():
    limits = [Limit.parse("5/second"), Limit.parse("5/second fixed_window"), parse_limits(["5/second", "9/hour"])]
    names = [
        name
        for secret in (b"", b"other")
        for space in ("a", "ab")
        for limit in limits
        for key in ("user:42", "b", b"b")
        for name in RowLayout(space, limit, secret).row_names(key)
    ]
    assert len(set(names)) == len(names)
    assert all(len(name) == 32 and name != "42" for name in names)


def test_a_limit_of_the_same_layout_finds_the_same_rows():
    before, after = (RowLayout("s", Limit(5, "minute", burst=burst)) for burst in (5, 9))
    assert before.row_names("k") == after.row_names("k")


def test_every_number_fits_a_bigint():
    chance = random.Random(1)
    limits = [part for limit in walk_limits() for part in limit.parts]
    limits += [extreme_limit(chance, name) for name in ALGORITHMS for _ in range(30)]
    for limit in limits:
        numbers = limit_numbers(limit, 1_790_000_000_000_000)
        assert len(numbers) == NUMBERS
        assert all(0 <= number < BIGINT for number in numbers)
        if limit.unit == 1:
            continue
        for operation in ("check", "debit", "refund"):  # the products of gcra.sql
            cost = bounded_cost(operation, limit, UNLIMITED)
            assert cost * numbers[1] <= BIGINT // 2, (limit, operation)
            assert cost * numbers[2] <= BIGINT // 2, (limit, operation)


@pytest.mark.parametrize("limit", [limit for limit in walk_limits() if isinstance(limit, Limit)], ids=str)
def test_no_numbers_are_an_empty_state(limit):
    assert read_state([], limit) == limit.rule.EMPTY


def test_ids_of_leases_have_64_bits():
    limit = Limit.parse("5 concurrent")
    assert limit_numbers(limit, lease=2**64 - 1, lasts=7)[2:4] == (-1, 7)
    assert read_state([1, 50, -2, 90, -1], limit) == ((90,), (2**64 - 1,), ((50, 2**64 - 2),))


def test_rows_are_kept_for_longer_than_any_state_counts():
    for limit in walk_limits():
        layout = RowLayout("s", limit)
        for keeps, part in zip(layout.keeps, limit.parts, strict=True):
            assert int(keeps) > 2 * part.recovery

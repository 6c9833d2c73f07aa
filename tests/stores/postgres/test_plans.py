"""Layouts of a store: the same for equal limits, and forgotten when they are released."""

from ratekeeper.limit import Limit
from ratekeeper.stores.postgres.plans import RowTranslator
from ratekeeper.stores.postgres.url import PostgresSettings


def translator():
    return RowTranslator(PostgresSettings("postgresql://h/d"), False, lambda: 0)


def test_equal_limits_share_a_layout():
    rows = translator()
    assert rows.layout("s", Limit.parse("5/hour")) is rows.layout("s", Limit.parse("5/hour"))
    assert rows.layout("s", Limit.parse("5/hour")) is not rows.layout("t", Limit.parse("5/hour"))


def test_limits_that_read_the_same_states_share_cached_refusals():
    rows = translator()
    one, two = (rows.layout("s", Limit(5, "hour", burst=burst)) for burst in (5, 9))
    assert one.refusals is two.refusals


def test_a_released_layout_is_made_anew():
    rows, limit = translator(), Limit.parse("5/hour")
    before = rows.layout("s", limit)
    rows.release("s", limit)
    assert rows.layout("s", limit) is not before

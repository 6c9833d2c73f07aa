"""Days, weeks and months of a zone, on every store of this process and by the text of a limit."""

from datetime import UTC, datetime, timedelta
from time import time
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest

from ratekeeper import InvalidLimit, Limit, Limiter, native
from ratekeeper.algorithms import calendar_window
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.testing import FakeClock

BERLIN = ZoneInfo("Europe/Berlin")


def stores():
    yield MemoryStore()
    if native.core is not None:
        from ratekeeper.stores.native import NativeStore
        from ratekeeper.stores.shared import SharedStore, remove

        yield NativeStore()
        name = f"test-{uuid4().hex}"
        store = SharedStore(name, max_keys=100)
        yield store
        store.close()
        remove(name)


def test_days_of_23_and_25_hours():
    clock = FakeClock(start=datetime(2026, 3, 29, tzinfo=BERLIN))
    limiter = Limiter("3/day calendar Europe/Berlin", clock=clock)
    assert limiter.check("k", 3).reset_after == 23 * 3600
    clock.advance(23 * 3600 - 1)
    assert limiter.check("k").retry_after == 1.0
    clock.advance(1)
    assert limiter.check("k", 3).reset_after == 24 * 3600
    clock.move_to(round(datetime(2026, 10, 25, tzinfo=BERLIN).timestamp()) * 10**6)
    assert limiter.check("k", 3).reset_after == 25 * 3600


def test_a_month_ends_with_the_month():
    clock = FakeClock(start=datetime(2026, 1, 31, 12, tzinfo=UTC))
    limiter = Limiter("100/month", clock=clock)
    assert limiter.check("k", 100).reset_after == 12 * 3600
    assert not limiter.check("k")
    clock.advance(12 * 3600)
    decision = limiter.check("k", 100)
    assert decision.allowed
    assert datetime.fromtimestamp(decision.reset_at, UTC) == datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["5/day fixed_window", "5/day calendar", "5/hour fixed_window"])
def test_windows_begin_at_the_same_time_of_day_on_every_store(text):
    """They used to begin with the machine in memory and in shared memory."""
    for store in stores():
        period = Limit.parse(text).period
        before = time()
        table = store.table("s", Limit.parse(text))
        (planned,) = store.check((Check("s", "a", Limit.parse(text), 1),))
        for decision in (table.check("k"), planned, store.prepare((("s", Limit.parse(text), 1),)).check(("b",))[1][0]):
            assert decision.reset_at % period == 0, (store, decision)
            assert before < decision.reset_at <= time() + period
            assert abs(decision.reset_at - decision.reset_after - time()) < 60


def test_aligned_limits_of_several_parts_follow_the_time_of_day():
    for store in stores():
        limits = parse_limits(["10/second", "1000/day calendar"])
        decision = store.table("s", limits).check("k")
        assert decision.reset_at % 86_400 == 0
        assert abs(decision.at / 1e6 - time()) < 60


def test_a_plan_of_both_clocks_is_decided_waited_for_and_given_back_by_each():
    for store in stores():
        plan = tuple(
            [Check(text, "k", Limit.parse(text), 2) for text in ("2/hour", "3/day calendar", "2/hour first-use")]
        )
        decisions = store.check(plan)
        assert all(decisions)
        assert abs(decisions[1].at / 1e6 - time()) < 60
        assert abs(decisions[0].at - decisions[1].at) > 10**12  # uptime, and the time since 1970
        instants, _states = store.states(plan)
        assert [decision.remaining for decision in store.check(plan)] == [0, 1, 0]
        assert instants[0] == instants[2] != instants[1]
        for check, decision in zip(plan, decisions, strict=True):
            store.refund((check,), decision.at)
        assert [decision.remaining for decision in store.peek(plan)] == [2, 3, 2]


def test_waiting_for_limits_of_both_clocks():
    limiter = Limiter(["5/second", "7/day calendar"])
    assert limiter.acquire("k", timeout=1.0)
    assert limiter.acquire("k", cost=5, timeout=3.0)
    late = limiter.acquire("k", cost=2, timeout=0.5)
    assert not late
    assert late.retry_after <= 86_400
    assert limiter.peek("k").remaining <= 1


def test_a_step_back_over_midnight_unlocks_nothing_and_locks_out_for_the_step():
    limit = Limit.parse("3/day calendar Europe/Berlin")
    midnight = round(datetime(2026, 10, 26, tzinfo=BERLIN).timestamp()) * 10**6
    state, _ = calendar_window.decide(calendar_window.EMPTY, midnight - 1, limit, 3)
    state, allowed = calendar_window.decide(state, midnight, limit, 3)
    assert allowed
    for back in (1, 10**6, 25 * 3600 * 10**6):
        kept, allowed = calendar_window.decide(state, midnight - back, limit, 1)
        assert not allowed
        assert kept is state
        assert calendar_window.retry_after(state, midnight - back, limit, 1) == back + 24 * 3600 * 10**6
    mended, allowed = calendar_window.decide(state, midnight - 26 * 3600 * 10**6, limit, 1)  # two windows back
    assert not allowed
    assert calendar_window.retry_after(mended, midnight - 26 * 3600 * 10**6, limit, 1) == 3600 * 10**6


def test_a_zone_and_a_unit_separate_states():
    store, clock = MemoryStore(clock=FakeClock(start=datetime(2026, 5, 5, tzinfo=UTC))), None
    texts = [
        "1/day calendar",
        "1/day calendar Europe/Berlin",
        "1/week calendar",
        "1/month",
        "1/year",
        "1/day first-use",
    ]
    assert clock is None
    for text in texts:
        assert Limiter(text, store=store, name="same").check("k"), text
        assert not Limiter(text, store=store, name="same").check("k"), text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("5/hour calendar",
         "expected one day, week, month or year with 'calendar', got hour. "
         "Shorter periods start at full hours, minutes and seconds with fixed_window."),
        ("5 per 2 days calendar",
         "expected one day, week, month or year with 'calendar', got 2 days. "
         "Shorter periods start at full hours, minutes and seconds with fixed_window."),
        ("5 per 2 months",
         "expected one month, as its length varies, got 2. Write a number of days, such as '90 days'."),
        ("5/month gcra",
         "expected one algorithm, got calendar_window and gcra. "
         "The length of a month varies: write 'days' for any other than calendar."),
        ("5/day calendar gcra", "expected one algorithm, got calendar_window and gcra."),
        ("5/day gcra calendar", "expected 'calendar' once and no other algorithm, got both."),
        ("5/day calendar calendar UTC", "expected 'calendar' once and no other algorithm, got both."),
        ("5/month burst 3",
         "expected no burst, as calendar_window admits its count at once, got burst 3. "
         "Use gcra, token_bucket or leaky_bucket for a burst."),
    ],
)  # fmt: skip
def test_what_is_no_calendar_is_refused(text, error):
    with pytest.raises(InvalidLimit) as caught:
        Limit.parse(text)
    assert str(caught.value) == f"limit {text!r}: {error}"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"window": "lunar"}, "expected a window ('calendar' or 'first-use'), got 'lunar'."),
        ({"timezone": "UTC"},
         "expected no time zone, as only calendar windows have one, got 'UTC'. Say window='calendar'."),
        ({"window": "calendar", "algorithm": "gcra"},
         "expected fixed_window or no algorithm with a calendar window, got 'gcra'."),
    ],
)  # fmt: skip
def test_arguments_that_do_not_go_together_are_refused(arguments, error):
    with pytest.raises(InvalidLimit) as caught:
        Limit(5, "day", **arguments)
    assert str(caught.value) == f"limit 5 per 'day': {error}"


def test_a_calendar_needs_the_name_of_its_period():
    for period in (86_400, "2 days", "hour", timedelta(days=1)):
        with pytest.raises(InvalidLimit, match="expected 'day', 'week', 'month' or 'year' as the period of a calendar"):
            Limit(5, period, window="calendar")
    with pytest.raises(InvalidLimit, match="expected a period of one length, got month"):
        Limit(5, "month", window="first-use")
    with pytest.raises(InvalidLimit, match="expected the window and the time zone in the text"):
        Limit("5/day", window="calendar")


def test_texts_and_arguments_say_the_same():
    assert (
        Limit(5, "month")
        == Limit.parse("5/month")
        == Limit.parse("5 per 1 month")
        == Limit.parse("5/MONTH calendar UTC")
    )
    assert Limit(5, "day", window="calendar", algorithm="fixed_window") == Limit.parse("5/day calendar", "fixed_window")
    zoned = Limit(5, "days", window="calendar", timezone="America/New_York")
    assert str(zoned) == "5/day calendar America/New_York"
    assert zoned == Limit.parse(str(zoned))
    assert zoned != Limit.parse("5/day calendar")
    assert (zoned.timezone, Limit.parse("5/day").timezone) == ("America/New_York", None)
    assert str(Limit(7, "month", timezone="Asia/Tokyo")) == "7/month calendar Asia/Tokyo"

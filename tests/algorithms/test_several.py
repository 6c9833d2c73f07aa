"""Several limits on one key, decided as one: all or nothing."""

from ratekeeper.algorithms import several
from ratekeeper.limit import LimitSet, empty_state, parse_limits

BOTH = parse_limits(["2/second fixed_window", "3/minute sliding_log"])
SECOND, MINUTE = 1_000_000, 60_000_000


def spend(times, now=0, state=None):
    state = empty_state(BOTH) if state is None else state
    for _ in range(times):
        state, allowed = several.decide(state, now, BOTH, 1)
    return state, allowed


def test_a_refusal_by_one_changes_the_state_of_none():
    assert isinstance(BOTH, LimitSet)
    state, allowed = spend(2)
    assert allowed
    assert several.decide(state, 0, BOTH, 1) == (state, False)
    assert several.decide(state, 0, BOTH, 1)[0] is state


def test_the_longest_wait_admits_and_a_microsecond_less_does_not():
    state, _ = spend(1, SECOND, spend(2)[0])
    assert several.remaining(state, SECOND, BOTH) == 0
    assert several.retry_after(state, SECOND, BOTH, 1) == MINUTE - SECOND  # the log; the window has room
    assert not several.decide(state, MINUTE - 1, BOTH, 1)[1]
    assert several.decide(state, MINUTE, BOTH, 1)[1]


def test_what_never_fits_one_never_fits():
    assert several.retry_after(empty_state(BOTH), 0, BOTH, 3) is None


def test_a_refund_goes_to_all():
    state, _ = spend(2)
    refunded = several.refund(state, 0, BOTH, 2, 0)
    assert several.remaining(refunded, 0, BOTH) == 2
    assert several.debt(refunded, 0, BOTH) == several.debt(empty_state(BOTH), 0, BOTH) == 0
    assert several.reset_after(state, 0, BOTH) == MINUTE


def test_the_longest_delay_counts():
    queues = parse_limits(["10/second burst 5 leaky_bucket", "2/second burst 5 leaky_bucket"])
    state = empty_state(queues)
    for expected in (0, 500_000, 1_000_000):
        state, allowed = several.decide(state, 0, queues, 1)
        assert (allowed, several.delay(state, 0, queues, 1)) == (True, expected)

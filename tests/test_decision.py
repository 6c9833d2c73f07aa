"""Verdicts, and the small print of the values."""

import copy
import pickle
from time import time

import pytest

from ratekeeper import Decision, Limit, Limiter, Verdict
from ratekeeper.check import Check
from ratekeeper.decision import decision_json
from ratekeeper.limit import UNLIMITED, LimitSet

YES = Decision(True, 10, 4, 0.0, 6.0, delay=0.5)
SOON = Decision(False, 5, 0, 2.0, 10.0)
LATE = Decision(False, 7, 0, 30.0, 60.0)
NEVER = Decision(False, 2, 2, None, 0.0)


def test_a_verdict_takes_the_longest_wait_and_the_least_left():
    verdict = Verdict(False, (YES, SOON, LATE), ("per-ip", "login", "login"))
    assert not verdict
    assert (verdict.retry_after, verdict.remaining, verdict.reset_after, verdict.delay) == (30.0, 0, 60.0, 0.5)
    assert verdict.binding is LATE
    assert verdict.rule == "login"
    assert repr(verdict) == "Verdict(allowed=False, rule='login', retry_after=30.0, remaining=0)"


def test_a_verdict_that_can_never_pass_has_no_wait():
    verdict = Verdict(False, (SOON, NEVER), ("a", "b"))
    assert verdict.retry_after is None
    assert verdict.rule == "b"


def test_an_allowed_verdict_is_bound_by_the_least_left():
    tight = Decision(True, 3, 1, 0.0, 2.0)
    verdict = Verdict(True, (YES, tight), ("a", "b"))
    assert verdict
    assert (verdict.binding, verdict.rule, verdict.retry_after) == (tight, "b", 0.0)


def test_a_verdict_on_nothing_allows_everything():
    verdict = Verdict(True, ())
    assert (verdict.binding, verdict.rule, verdict.retry_after) == (None, None, 0.0)
    assert (verdict.remaining, verdict.reset_after, verdict.delay) == (UNLIMITED, 0.0, 0.0)
    before = time()
    assert before <= verdict.reset_at <= time()
    with pytest.raises(AttributeError):
        verdict.allowed = False


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_values_are_the_same_after_a_copy_and_as_frozen(way):
    both = LimitSet([Limit.parse("1/second"), Limit.parse("9/minute fixed_window")])
    assert way(both) == both
    with pytest.raises(AttributeError, match="make a new LimitSet"):
        way(both).limits = ()
    wanted = way(Check("login", "k", both, 2, "deny"))
    assert (wanted.space, wanted.key, wanted.limit, wanted.cost, wanted.on_store_error) == (
        "login", "k", both, 2, "deny",
    )  # fmt: skip
    verdict = way(Verdict(False, (YES, LATE), ("a", "b"), "late"))
    assert (verdict.allowed, verdict.decisions, verdict.rule, verdict.reason) == (False, (YES, LATE), "b", "late")


def test_decisions_are_equal_by_their_answers_only():
    assert Decision(True, 10, 4, 0.0, 6.0, delay=0.5) == YES
    assert YES != SOON
    assert YES != (True, 10)
    assert len({YES, Decision(True, 10, 4, 0.0, 6.0, delay=0.5)}) == 1
    assert YES.parts() == (YES,)


def test_a_decision_as_json_names_no_host():
    assert decision_json(YES) == {
        "allowed": True, "limit": 10, "remaining": 4, "retry_after": 0.0, "reset_after": 6.0, "delay": 0.5,
    }  # fmt: skip
    local = Limiter("10/minute", store="redis://127.0.0.1:1").check("k")  # nobody listens there
    assert local.reason.startswith("local: could not be reached")
    assert decision_json(local)["reason"] == "local"

"""Flows without a store, a loop or a clock that runs: tests send replies in and read effects out."""

import pytest

from ratekeeper import Decision, Limit
from ratekeeper.check import Check

LIMIT = Limit.parse("1/second")
YES = Decision(True, 1, 0, 0.0, 1.0)


def wanted(cost=1, limit=LIMIT):
    return Check("space", "key", limit, cost)


def result(flow, reply):
    with pytest.raises(StopIteration) as done:
        flow.send(reply)
    return done.value.value


def read(effect):
    return (type(effect).__name__, *(getattr(effect, "operation", None) or getattr(effect, "micros", None),))

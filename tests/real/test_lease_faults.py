"""Concurrency limits under random faults: never above the limit, and no place is lost for long."""

import os

import pytest

from tests.real.lease_faults import KINDS, RATES, WITHIN, run
from tests.real.lease_holders import COUNT

pytestmark = pytest.mark.real
SECONDS, LANES = (5, 1) if os.environ.get("RATEKEEPER_REAL_SHORT") else (60, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_no_fault_passes_the_limit_or_keeps_a_place(kind):
    in_memory = kind == "memory"
    totals = run(kind, min(SECONDS, 3) if in_memory else SECONDS, seed=1, lanes=LANES, cancels=100 if in_memory else 8)
    assert sum(totals.faults.values()) >= 10
    assert all(totals.faults[fault] for fault in RATES[kind] if RATES[kind][fault] * SECONDS >= 5)
    assert 2 <= totals.most <= COUNT
    assert totals.worst <= WITHIN + 1.0

"""Concurrency limits under random faults: never above the limit, and no place is lost for long."""

import os

import pytest

from tests.real.lease_faults import COUNT, WITHIN, run

pytestmark = pytest.mark.real
SECONDS = 5 if os.environ.get("RATEKEEPER_REAL_SHORT") else 60


@pytest.mark.parametrize("kind", ["redis", "valkey", "cluster", "shm", "memory"])
def test_no_fault_passes_the_limit_or_keeps_a_place(kind):
    seconds = min(SECONDS, 3) if kind == "memory" else SECONDS
    faults, most, free_after = run(kind, seconds, seed=1, cancels=100 if kind == "memory" else 12)
    assert sum(faults.values()) >= 10
    assert 2 <= most <= COUNT
    assert free_after <= WITHIN + 1.0

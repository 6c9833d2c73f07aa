"""At least 100,000 random steps of each algorithm beside the exact model, without one mismatch."""

import os

import pytest

from ratekeeper.algorithms import ALGORITHMS
from tests.laws.walk import limits, walk

pytestmark = pytest.mark.real
STEPS = 5_000 if os.environ.get("RATEKEEPER_REAL_SHORT") else 100_000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_steps_with_the_model(algorithm):
    chosen = limits(algorithm)
    share = STEPS // len(chosen) + 1
    walked = sum(walk(limit, 1000 + seed, share, answers_every=5) for seed, limit in enumerate(chosen))
    assert walked >= STEPS

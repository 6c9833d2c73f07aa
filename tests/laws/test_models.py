"""The rules agree with the exact model in rationals, step by step; the long run is in tests/real."""

import pytest

from ratekeeper.algorithms import ALGORITHMS, WINDOWS
from tests import tier
from tests.laws.walk import limits, walk


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, *WINDOWS])
def test_a_rule_walks_with_its_model(algorithm):
    for seed, limit in enumerate(limits(algorithm)):
        assert walk(limit, seed, steps=tier.steps(120, 40), answers_every=4)

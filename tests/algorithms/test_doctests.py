"""The worked example of each rule, in its own file, is true."""

import doctest
import importlib

import pytest

import ratekeeper
from ratekeeper.algorithms import ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_worked_example(name):
    outcome = doctest.testmod(importlib.import_module(f"ratekeeper.algorithms.{name}"))
    assert outcome.attempted >= 4
    assert outcome.failed == 0


def test_the_front_page():
    outcome = doctest.testmod(ratekeeper)
    assert outcome.attempted >= 4
    assert outcome.failed == 0

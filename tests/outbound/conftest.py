"""Tests of pacing count whole intervals on a clock of their own: no network delays their calls, so no margin is kept.

What the margin is for: test_outage.py and test_provider_limits.py.
"""

import pytest


@pytest.fixture(autouse=True)
def no_margin(request, monkeypatch):
    if "with_margin" not in request.fixturenames:
        monkeypatch.setattr("ratekeeper.outbound.limits.SHORTEST_MARGIN", 0)
        monkeypatch.setattr("ratekeeper.outbound.limits.LONGEST_MARGIN", 0)


@pytest.fixture
def with_margin():
    """Ask for this to keep the default margin."""

"""Our library on Redis, and our service by HTTP, CL.THROTTLE and Envoy's protocol, keep every law of the suite."""

import os
import shutil

import pytest

from conformance import targets
from conformance.judge import FAILED, PASSED, judge

pytestmark = pytest.mark.real
OURS = ["ratekeeper-redis", "ratekeeper-http", "ratekeeper-resp", "ratekeeper-envoy"]
if os.environ.get("RATEKEEPER_REAL_SHORT"):
    OURS = OURS[:1]  # each takes half a minute


@pytest.mark.parametrize("name", OURS)
def test_ours_keeps_every_law(name):
    if name == "ratekeeper-redis" and not shutil.which("redis-server"):
        pytest.skip("no redis-server here")
    result = judge(targets.find(name), is_quick=True)
    assert "missing" not in result, result["missing"]
    assert {law: cell for law, cell in result["laws"].items() if cell["status"] == FAILED} == {}
    assert result["levels"]["core"] == PASSED
    assert result["levels"]["distributed"] == PASSED
    if name == "ratekeeper-redis":
        assert result["levels"]["failure"] == PASSED
    if name == "ratekeeper-http":
        assert result["levels"]["http"] == PASSED

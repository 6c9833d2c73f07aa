"""Recipes for LangChain, LiteLLM and google-genai, each in a process that has these packages first on its path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent.parent
PACKAGES = Path(sys.prefix, "llm-packages")


@pytest.mark.parametrize("package", ["langchain", "litellm", "google"])
def test_the_budget_matches_the_servers_count(package):
    if not Path(PACKAGES, "litellm").exists():
        pytest.skip("no LangChain, LiteLLM and google-genai here: run scripts/ensure-llm-packages")
    path = os.pathsep.join([str(PACKAGES), str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    words = [sys.executable, "-m", "tests.real.llm_packages", package]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    counts = [line.split() for line in done.stdout.splitlines()]
    assert [unit for unit, _, _ in counts] == ["requests", "tokens"]
    for unit, spent, counted in counts:
        assert int(spent) == int(counted) >= 2, unit

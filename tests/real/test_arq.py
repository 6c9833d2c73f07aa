"""The recipe for arq, in a real worker on a real Redis; arq wants an older redis-py, so it has a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent.parent
ARQ = Path(sys.prefix, "arq")


def test_jobs_of_arq_run_at_the_pace_and_none_is_lost(redis_server):
    if not Path(ARQ, "arq").exists():
        pytest.skip("no arq here: run scripts/ensure-arq")
    words = [sys.executable, "-m", "tests.real.arq_jobs", str(redis_server.port)]
    path = os.pathsep.join([str(ARQ), str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    ran = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert sorted(number for number, _ in ran) == list(range(6))  # each once
    times = [at for _, at in ran]
    assert all(at >= 500 * place - 5 for place, at in enumerate(times))  # never faster than the limit
    assert times[-1] < 20_000

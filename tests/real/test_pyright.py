"""What mypy accepts, pyright accepts too: the types of transports in the SDKs."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(300)
def test_pyright_accepts_the_types_of_the_sdks():
    if find_spec("pyright") is None:
        pytest.skip("no pyright here: run pip install --group real")
    words = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "tests/typing/sdks.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    if "npm" in done.stderr and "error" not in done.stdout:
        pytest.skip("pyright could not fetch its program")
    assert done.returncode == 0, done.stdout + done.stderr

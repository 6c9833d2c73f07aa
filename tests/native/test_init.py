"""Which engine decides in this process, and how the environment chooses it."""

import os
import subprocess
import sys

import pytest

from ratekeeper import Limiter, MemoryStore, info, native


@pytest.mark.skipif(native.core is None, reason=native.REASON)
def test_memory_is_native_where_it_was_built():
    assert MemoryStore.__module__ == "ratekeeper.stores.native"
    assert type(Limiter("1/second").check).__name__ == "builtin_function_or_method"
    assert (info()["engine"], info()["version"]) == ("native", "0.1.0")


def test_the_environment_chooses_python():
    script = "import ratekeeper; print(ratekeeper.info()['engine'], ratekeeper.Limiter('1/second').check('k').allowed)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "RATEKEEPER_PURE": "1"}
    )
    assert done.stdout == "pure True\n", done.stderr

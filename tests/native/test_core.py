"""The table without Python: random acts and threads, in programs built with sanitizers."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests import tier
from tests.native.build import HERE, STRICT, compiled, compiler, run

MEMORY = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
THREADS = ["-O1", "-fsanitize=thread"]


def test_random_acts_break_no_rule_of_the_language():
    done = run(compiled("fuzz", *MEMORY), 2024, tier.steps(300))
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


def test_threads_that_hold_the_regions_lock_get_exactly_the_limit():
    done = run(compiled("threads", *THREADS))
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


@pytest.mark.parametrize("watched", [MEMORY, THREADS], ids=["memory", "threads"])
def test_threads_on_one_connection_get_their_own_answers(watched):
    done = run(compiled("line", *watched), tier.steps(3000))
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert (done.stdout[:5], done.returncode) == ("told ", 0), done.stderr


def test_a_flood_ten_times_the_table_resets_nobody_at_the_limit():
    done = run(compiled("flood", "-O2"), tier.steps(12, 1))
    assert (done.stdout, done.returncode) == ("reset: 0\n", 0)


SOURCES = sorted((HERE.parents[1] / "src" / "ratekeeper" / "native").glob("*.c"))
if not Path("/usr/include/nghttp2/nghttp2.h").exists():
    SOURCES = [path for path in SOURCES if path.stem != "http2_session"]


@pytest.mark.full  # it compiles the core twice
@pytest.mark.parametrize("stable", [True, False], ids=["stable ABI", "own ABI"])
def test_the_compiler_warns_of_nothing(stable):
    """A warning of today is an error of the next compiler, and then the core would silently not be built."""
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        pytest.skip("no headers of Python here")
    loose = ["-Wno-unused-parameter", "-Wno-cast-function-type"]  # the ways of Python's own tables
    flags = ["-std=gnu11", "-O2", *STRICT, *loose, f"-I{include}", "-fsyntax-only"]
    flags += ["-DPy_LIMITED_API=0x030B0000"] if stable else ["-DRATEKEEPER_LOCKED=1"]
    done = subprocess.run([compiler(), *flags, *map(str, SOURCES)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

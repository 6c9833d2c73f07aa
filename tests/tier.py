"""How much a run tries.

`make test` is the quick tier: every test, with fewer random steps, examples and seeds.  `make full` sets
``RATEKEEPER_FULL=1`` and runs all of them; so does CI.  Nothing else reads that variable.
"""

import os

import pytest

FULL = bool(os.environ.get("RATEKEEPER_FULL"))


def steps(full: int, quick: int | None = None) -> int:
    """Choose how often something random is done: ``full`` times, or ``quick`` times (a tenth, unless given)."""
    if FULL:
        return full
    return max(1, full // 10) if quick is None else quick


def examples(full: int) -> int:
    """Choose how many examples Hypothesis tries: a tenth in the quick tier, but at least ten."""
    return full if FULL else min(full, max(10, full // 10))


# For tests in tests/real whose figures depend on how fast the machine is: only the long form runs them.
TIMED = pytest.mark.skipif(
    bool(os.environ.get("RATEKEEPER_REAL_SHORT")), reason="depends on the speed of the machine: in the long form only"
)

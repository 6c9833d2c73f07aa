"""For tests: a clock that a test moves, the contract of every store, and pytest fixtures.

pytest finds the fixtures as soon as ratekeeper is installed: ``fake_clock`` is a FakeClock, and ``frozen_limits`` puts
every limiter of the application under test on one, if its state is in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.testing.contract import StoreContract, TimedStoreContract
from ratekeeper.testing.fake_clock import FakeClock, frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FakeClock", "StoreContract", "TimedStoreContract", "frozen"]

try:
    import pytest
except ImportError:  # the clock and the contract work without pytest
    pass
else:

    @pytest.fixture
    def fake_clock() -> FakeClock:
        """A clock for ``Limiter(..., clock=fake_clock)``."""
        return FakeClock()

    @pytest.fixture
    def frozen_limits() -> Iterator[FakeClock]:
        """Freeze the time of every limiter of the application under test, with nothing used yet."""
        with frozen() as clock:
            yield clock

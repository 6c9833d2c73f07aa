"""Drivers do what a flow yields, for threads and for event loops."""

import pytest

from ratekeeper.flow.drive import drive
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.flow.settle import ask
from ratekeeper.testing import FakeClock
from tests.flow.replies import wanted


def test_a_driver_passes_errors_of_the_store_into_the_flow():
    class Broken:
        def check(self, plan):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        drive(ask("check", (wanted(),)), Broken(), FakeClock(), WaitQueue())

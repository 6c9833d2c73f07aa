"""The contract of stores finds what it is for: a store that breaks a promise fails a test of it."""

import pytest

from ratekeeper import MemoryStore
from ratekeeper.testing import TimedStoreContract


def failing(store_type):
    """The tests of the contract that a store does not pass."""

    class Contract(TimedStoreContract):
        STEPS = 30

        def make_store(self):
            return store_type(clock=self.clock)

    failed = []
    for name in [name for name in dir(Contract) if name.startswith("test_")]:
        contract = Contract()
        contract.setup_method()
        try:
            getattr(contract, name)()
        except AssertionError:
            failed.append(name)
        finally:
            if hasattr(contract, "teardown_method"):
                contract.teardown_method()
    return failed


class Generous(MemoryStore):
    """Admits what it should refuse, at times."""

    def check(self, plan):
        decisions = super().check(plan)
        return decisions if all(decisions) else super().peek(plan[:1]) * len(plan)


class Forgetful(MemoryStore):
    """Keeps what was given back."""

    def refund(self, plan, at=None):
        return super().peek(plan)


class Charging(MemoryStore):
    """Takes from those who only look."""

    def peek(self, plan):
        return super().check(plan)


def test_a_store_that_keeps_all_promises_passes():
    assert failing(MemoryStore) == []


@pytest.mark.parametrize("store_type", [Generous, Forgetful, Charging])
def test_a_store_that_breaks_one_fails(store_type):
    assert failing(store_type)

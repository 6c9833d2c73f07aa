"""Stores are opened by URL."""

import pytest

from ratekeeper import (
    InvalidInput,
    InvalidStore,
    Limiter,
    MemoryStore,
)
from ratekeeper.testing import FakeClock


def test_stores_are_named_by_url():
    limiter = Limiter("1/minute", store="memory://?max_keys=10")
    assert limiter.store.max_keys == 10
    assert Limiter("1/minute", max_keys=7).store.max_keys == 7
    for wrong in ("memroy://", "memory", "memory://host", "memory://?max_kyes=1", "memory://?max_keys=x", "ftp://x"):
        with pytest.raises(InvalidStore):
            Limiter("1/minute", store=wrong)
    with pytest.raises(InvalidStore, match="Did you mean 'memory://'"):
        Limiter("1/minute", store="memroy://")
    with pytest.raises(InvalidStore):
        Limiter("1/minute", max_keys=0)
    with pytest.raises(InvalidStore):
        Limiter("1/minute", store=MemoryStore(), clock=FakeClock())
    with pytest.raises(InvalidInput):
        Limiter("1/minute", name="")

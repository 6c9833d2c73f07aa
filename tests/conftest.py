"""For every test: real servers, the tier of the run, and Hypothesis without deadlines (a busy machine is no bug)."""

import atexit
import contextlib
import gc
import logging
import os
from logging.handlers import QueueHandler

import pytest
from hypothesis import HealthCheck, settings

from ratekeeper.testing import TimedStoreContract
from tests import tier
from tests.servers import (
    any_server,
    memcached_server,
    postgres_server,
    redis_cluster,
    redis_sentinel,
    redis_server,
    valkey_server,
)

__all__ = [
    "any_server",
    "memcached_server",
    "postgres_server",
    "redis_cluster",
    "redis_sentinel",
    "redis_server",
    "valkey_server",
]

# Where it decides whether a change lands a run must be repeatable; elsewhere it goes on searching.
settings.register_profile(
    "ratekeeper",
    deadline=None,
    max_examples=tier.examples(100),
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],  # one pause of a second while an example is drawn
)
settings.load_profile("ratekeeper")
TimedStoreContract.STEPS = tier.steps(TimedStoreContract.STEPS)


gc.disable()  # until all tests are collected: what is loaded meanwhile stays


def pytest_collection_finish():
    set_aside()
    gc.enable()


def set_aside():
    """What is loaded by now stays: a test that collects garbage need not walk through all of it (0.3 s each time)."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def garbage_of_this_module():
    """Garbage is collected with the module that left it."""
    yield
    set_aside()


def pytest_collection_modifyitems(config, items):
    """Leave tests that are marked ``full`` to the full tier, and those that need a server of Postgres."""
    if tier.FULL:
        return
    later = {
        item for item in items
        if item.get_closest_marker("full") or "postgres_server" in getattr(item, "fixturenames", ())
    }  # fmt: skip
    if later:
        config.hook.pytest_deselected(items=list(later))
        items[:] = [item for item in items if item not in later]


@pytest.fixture(autouse=True)
def no_foreign_logs():
    """Litestar makes a thread write all logs to the standard error of now, which pytest closes with the test."""
    yield
    for logger in (logging.getLogger(), logging.getLogger("litestar")):
        for handler in [handler for handler in logger.handlers if isinstance(handler, QueueHandler)]:
            logger.removeHandler(handler)
            atexit.unregister(handler.listener.stop)
            with contextlib.suppress(AttributeError):  # it has stopped already
                handler.listener.stop()

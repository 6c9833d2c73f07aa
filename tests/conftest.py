"""For every test: real servers, and Hypothesis without deadlines (a busy machine is no bug)."""

import atexit
import contextlib
import logging
import os
from logging.handlers import QueueHandler

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import any_server, redis_cluster, redis_sentinel, redis_server, valkey_server

__all__ = ["any_server", "redis_cluster", "redis_sentinel", "redis_server", "valkey_server"]

# Where it decides whether a change lands a run must be repeatable; elsewhere it goes on searching.
settings.register_profile(
    "ratekeeper",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],  # one pause of a second while an example is drawn
)
settings.load_profile("ratekeeper")


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

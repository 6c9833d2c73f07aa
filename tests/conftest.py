"""For every test: real servers, and Hypothesis without deadlines (a busy machine is no bug)."""

import os

from hypothesis import settings

from tests.servers import any_server, redis_cluster, redis_sentinel, redis_server, valkey_server

__all__ = ["any_server", "redis_cluster", "redis_sentinel", "redis_server", "valkey_server"]

# Where it decides whether a change lands a run must be repeatable; elsewhere it goes on searching.
settings.register_profile("ratekeeper", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("ratekeeper")

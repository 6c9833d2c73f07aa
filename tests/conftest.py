"""Fixtures for every test: real servers."""

from tests.servers import any_server, redis_server, valkey_server

__all__ = ["any_server", "redis_server", "valkey_server"]

"""A server that answers, but executes no check that writes: the log says so once, with the cause and what decides."""

import asyncio
import contextlib
import logging
import time

import pytest

from ratekeeper import AsyncLimiter, Limiter
from tests.servers import Server

pytestmark = pytest.mark.real


@contextlib.contextmanager
def full(client):
    client.config_set("maxmemory", "1")
    yield "OOM command not allowed when used memory > 'maxmemory'."
    client.config_set("maxmemory", "0")


@contextlib.contextmanager
def without_replicas(client):
    client.config_set("min-replicas-to-write", "1")
    yield "NOREPLICAS Not enough good replicas to write."
    client.config_set("min-replicas-to-write", "0")


@contextlib.contextmanager
def without_set(client):
    client.execute_command("ACL", "SETUSER", "default", "-set")
    yield "ERR The user executing the script can't run this command or subcommand."
    client.execute_command("ACL", "SETUSER", "default", "+set")


def lines(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "ratekeeper.store"]


MODES = {
    "local": "on_store_error=local (50 % of each limit, per process)",
    "allow": "on_store_error=allow",
    "deny": "on_store_error=deny",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cause", [full, without_replicas, without_set])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_log_has_one_line_for_each_change(kind, cause, mode, caplog):
    caplog.set_level(logging.INFO, "ratekeeper.store")
    server = Server()
    client = server.client()

    async def answered(answer):
        return await answer if hasattr(answer, "__await__") else answer

    async def main():
        make = Limiter if kind == "sync" else AsyncLimiter
        limiter = make("1000/day", store=f"{server.url}?deadline=5", on_store_error=mode)
        assert not (await answered(limiter.check("k"))).reason
        with cause(client) as said:
            reasons = {(await answered(limiter.check("k"))).reason for _ in range(100)}
            assert {reason.partition(": ")[0] for reason in reasons} == {mode}
            (away,) = lines(caplog)
            assert away[0] == "WARNING"
            where = f"redis://127.0.0.1:{server.port}"
            assert away[1] == f"{where}: answered {said} Using {MODES[mode]} for checks that it does not execute"
        until = time.monotonic() + 10
        while len(lines(caplog)) < 2:
            assert time.monotonic() < until
            await answered(limiter.check("k"))
        assert lines(caplog)[1:] == [("INFO", f"redis://127.0.0.1:{server.port}: executes every check again")]
        assert not (await answered(limiter.check("k"))).reason
        await answered(limiter.close())

    try:
        asyncio.run(main())
    finally:
        server.close()
    assert len(lines(caplog)) == 2


def test_what_was_admitted_while_a_server_was_full_is_charged(caplog):
    server = Server()
    client = server.client()
    try:
        limiter = Limiter("1000/day", store=f"{server.url}?deadline=5", name="full")
        assert limiter.check("k")
        with full(client):
            assert sum(bool(limiter.check("k")) for _ in range(100)) == 100
        until = time.monotonic() + 10
        while limiter.store.fallback.owing:  # charged beside the callers
            assert time.monotonic() < until
            limiter.peek("other")
            time.sleep(0.01)
        assert limiter.peek("k").remaining == 899
        limiter.close()
    finally:
        server.close()

"""Names of servers are looked up beside the application: its threads and its event loop do not wait."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratekeeper import AsyncLimiter
from ratekeeper.stores.redis.name_lookup import addresses_of, lookups


def test_a_name_server_that_hangs_leaves_the_threads_of_the_application_alone(monkeypatch):
    """A look-up took a thread of the default executor, so that the application's own calls waited behind it."""
    hangs, look_up, asked = threading.Event(), socket.getaddrinfo, []

    def resolve(host, *rest, **options):
        if host != "store.invalid":
            return look_up(host, *rest, **options)
        asked.append(host)
        hangs.wait(60)
        raise socket.gaierror("gave up")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        url = "redis://store.invalid?deadline=20ms&first_deadline=20ms"
        async with AsyncLimiter("5/minute", store=url) as limiter:
            for _ in range(5):
                assert "could not be reached within 20 ms" in (await limiter.check("k")).reason
                assert await asyncio.to_thread(lambda: "not kept waiting") == "not kept waiting"
        hangs.set()

    asyncio.run(main())
    assert len(asked) == 1  # attempts share one look-up


def test_the_answer_is_that_of_the_system():
    place = asyncio.run(addresses_of(("127.0.0.1", 7)))[0][4]
    assert place == ("127.0.0.1", 7)
    assert ("127.0.0.1", 7) not in lookups


def test_an_error_reaches_all_attempts_that_wait(monkeypatch):
    asked = []

    def fail(*arguments, **options):
        asked.append(arguments)
        raise socket.gaierror(8, "no such name")

    async def main():
        monkeypatch.setattr(socket, "getaddrinfo", fail)
        attempts = [addresses_of(("absent.invalid", 6379)) for _ in range(3)]
        return await asyncio.gather(*attempts, return_exceptions=True)

    errors = asyncio.run(main())
    assert [str(error) for error in errors] == ["[Errno 8] no such name"] * 3
    assert 1 <= len(asked) <= 3
    with pytest.raises(socket.gaierror):
        asyncio.run(addresses_of(("absent.invalid", 6379)))

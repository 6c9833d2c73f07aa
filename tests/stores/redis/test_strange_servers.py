"""Servers that are no servers: they hang, or answer something else than was asked.  A mode decides, nobody raises."""

import asyncio
import contextlib
import socket
import threading

import pytest

from ratekeeper import AsyncLimiter, Limiter
from ratekeeper.stores.redis.resp import encode_command
from ratekeeper.stores.redis.script import compose

END_OF_HANDSHAKE = encode_command(*compose().nothing).partition(b"\r\n")[2]
REPLIES = 3


@pytest.fixture
def hole():
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def parrot():
    """Says OK to everything."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(near):
        with near, contextlib.suppress(OSError):
            heard = b""
            while not heard.endswith(END_OF_HANDSHAKE):
                part = near.recv(65536)
                if not part:
                    return
                heard += part
            near.sendall(b"+OK\r\n" * REPLIES)
            while near.recv(65536):
                near.sendall(b"+OK\r\n")

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_an_answer_to_another_question_is_an_outage(parrot):
    url = f"redis://127.0.0.1:{parrot}?deadline=10"
    limiter = Limiter("10/minute", store=url)
    assert "answered something else than was asked" in limiter.check("k").reason
    limiter.close()

    async def main():
        async with AsyncLimiter("10/minute", store=url) as limiter:
            answers = await asyncio.gather(*[limiter.check("k") for _ in range(5)])
            assert all("answered something else than was asked" in answer.reason for answer in answers)

    asyncio.run(main())


@pytest.mark.full  # it waits for an address that hangs
@pytest.mark.parametrize("servers", ["redis_sentinel", "redis_cluster"])
def test_the_first_address_that_hangs_does_not_hide_the_next(hole, servers, request):
    url = request.getfixturevalue(servers).url.replace("://", f"://127.0.0.1:{hole},") + "?deadline=4"
    limiter = Limiter("10/minute", store=url)
    assert limiter.check("sync").reason == ""
    limiter.close()

    async def main():
        async with AsyncLimiter("10/minute", store=url) as limiter:
            assert (await limiter.check("async")).reason == ""

    asyncio.run(main())

"""Clients that want a service to fail, in a process of their own: ``python -m tests.real.attackers HTTP RESP SECONDS``.

Each kind does one thing for as long as it may, at a pace that one process can keep up beside all others.
"""

import asyncio
import contextlib
import json
import logging
import random
import sys
import time

HOST = "127.0.0.1"


def post(body):
    text = json.dumps(body)
    return f"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()


def command(*words):
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Attack:
    def __init__(self, http, resp, seconds):
        self.http, self.resp = http, resp
        self.until = time.monotonic() + seconds
        self.done = {}

    async def repeat(self, kind, pause, *arguments):
        """One attack again and again, whatever the service does about it."""
        while time.monotonic() < self.until:
            with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError):
                await asyncio.wait_for(kind(*arguments), 20)
                self.done[kind.__name__] = self.done.get(kind.__name__, 0) + 1
            await asyncio.sleep(pause)

    async def exchange(self, port, sent, most=65536):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(sent)
            await writer.drain()
            return await reader.read(most)
        finally:
            writer.close()

    async def slow(self, port, start):
        """A request that arrives byte by byte and never ends, until the service hangs up."""
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            for byte in start:
                writer.write(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(100), 1.0)
                    return
        finally:
            writer.close()

    async def idle(self):
        """Connections that say nothing."""
        pairs = [await asyncio.open_connection(HOST, port) for port in (self.http, self.resp) * 20]
        await asyncio.sleep(5)
        for _, writer in pairs:
            writer.close()

    async def names(self):
        name = random.randrange(10**9)
        await self.exchange(self.http, b"".join([
            post({"key": "k", "limit": f"{number + 1}/hour", "name": f"{name}-{number}"}) for number in range(20)
        ]))  # fmt: skip

    async def keys(self):
        word = random.randbytes(100).hex()
        sent = [command("CL.THROTTLE", f"{word}{number}", 0, 1, 60, 2) for number in range(200)]
        await self.exchange(self.resp, b"".join(sent))

    async def long_keys(self):
        await self.exchange(self.http, post({"key": "x" * 200_000, "limit": "1/day", "cost": 2}))

    async def routes(self):
        word = random.randrange(10**9)
        await self.exchange(self.http, b"".join([
            post({"request": {"route": f"/{word}/{number}" + "r" * 200}}) for number in range(20)
        ]))  # fmt: skip

    async def giant_bodies(self):
        await self.exchange(self.http, post({"key": "x" * 5_000_000, "limit": "1/day"}))
        await self.exchange(self.resp, b"*2\r\n$4\r\nECHO\r\n$200000\r\n" + b"x" * 150_000)

    async def pipelines(self):
        await self.exchange(self.resp, command("CL.THROTTLE", "pipeline", 10, 10, 60) * 2000)
        await self.exchange(self.http, post({"key": "pipeline", "limit": "10/minute"}) * 400)

    async def unread(self):
        """Many requests of a client that reads nothing."""
        _, writer = await asyncio.open_connection(HOST, self.http)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100)
        await asyncio.sleep(3)
        writer.transport.abort()

    async def other_protocols(self):
        await self.exchange(self.resp, b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        await self.exchange(self.http, random.randbytes(500))
        await self.exchange(self.resp, random.randbytes(500))

    async def logs(self):
        await self.exchange(self.http, post({"key": "k", "limit": f"{random.randrange(500, 1500)}/day sliding_log"}))

    async def run(self):
        slow = [self.repeat(self.slow, 0.1, self.http, b"POST /v1/check HTTP/1.1\r\n") for _ in range(100)]
        slow += [self.repeat(self.slow, 0.1, self.resp, command("PING", "x" * 20)) for _ in range(100)]
        kinds = [(self.idle, 0.5), (self.names, 0.05), (self.keys, 0.05), (self.long_keys, 0.1), (self.routes, 0.05),
                 (self.giant_bodies, 0.2), (self.pipelines, 0.1), (self.unread, 0.5), (self.other_protocols, 0.05),
                 (self.logs, 0.05)]  # fmt: skip
        attacks = asyncio.gather(*slow, *[self.repeat(kind, pause) for kind, pause in kinds])
        with contextlib.suppress(TimeoutError):  # of an attack that goes on for longer
            await asyncio.wait_for(attacks, self.until - time.monotonic())
        print(json.dumps(self.done))


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # that the service hangs up is what it should do
    asyncio.run(Attack(*map(int, sys.argv[1:4])).run())

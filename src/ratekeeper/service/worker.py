"""One worker: opens the doors, keeps time, and closes them in order.

Closing: health turns red, doors stay open for ``drain`` seconds so that balancers notice, then nothing new is taken,
what is under way is answered, and the worker ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput
from ratekeeper.rules.policy import Policy
from ratekeeper.service.decider import Decider
from ratekeeper.service.http.reservation_token import Seal
from ratekeeper.service.http.routes import HttpRoutes
from ratekeeper.service.http.server import HttpListener
from ratekeeper.service.options import Options, parse_address
from ratekeeper.service.retired_limits import collect
from ratekeeper.service.systemd import notify, reloading, watchdog
from ratekeeper.service.worker_counters import EVERY, WorkerCounters

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("ratekeeper")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the first two end a worker, the last has it read its rules


def policy_for(options: Options) -> Policy:
    """The rules of the file, or none at all: then callers name their limits themselves."""
    if options.rules is not None:
        return Policy.load(options.rules, store=options.store)
    empty: dict[str, Any] = {"rules": [], "store": options.store or "memory://"}
    return Policy.parse(empty)


def bound(address: str, option: str, *, shared: bool) -> socket.socket:
    """A socket bound to ``address``; ``shared`` lets every worker bind its own."""
    host, port = parse_address(address, option)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.setblocking(False)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise InvalidInput(
            f"{option}: expected an address that can be listened on, got {address!r}: {error.strerror}. "
            "Choose another port, or end what listens there."
        ) from error
    return made


def try_addresses(options: Options) -> None:
    """Find out before anything is opened whether all doors can be: workers share a port with anybody who shares his."""
    seen: dict[tuple[str, int], str] = {}
    for name in ("http", "grpc", "resp"):
        address = getattr(options, name)
        if address is None:
            continue
        place = parse_address(address, f"--{name}")
        if place[1] and place in seen:
            raise InvalidInput(f"--{name}: expected an address of its own, got {address!r}, that of {seen[place]}.")
        seen[place] = f"--{name}"
        bound(address, f"--{name}", shared=False).close()


class Worker:
    """A running service in one process."""

    def __init__(self, options: Options, number: int = 0, secret: bytes = b"") -> None:
        self.options = options
        self.number = number
        self.keeper = Decider(policy_for(options), options)
        self.colleagues = WorkerCounters(options.state, number, self.keeper.tally)
        own = self.keeper.settings.secret  # shared by a fleet; else by the workers of this service
        self.seal = Seal(own.encode() if own else secret)
        self.site = HttpRoutes(self.keeper, self.colleagues, self.seal)
        self.doors: list[Any] = []
        self.ended = asyncio.Event()
        self.clock: asyncio.Task[None] | None = None
        self.addresses: dict[str, tuple[str, int]] = {}

    async def open(self) -> None:
        options, shared = self.options, self.options.workers > 1
        if options.http is not None:
            door = HttpListener(self.site.route, options.bounds, self.keeper.tally.turned_away)
            await self.enter(door, bound(options.http, "--http", shared=shared))
        if options.resp is not None:
            from ratekeeper.service.resp import RespListener

            resp = RespListener(self.keeper, options.bounds)
            await self.enter(resp, bound(options.resp, "--resp", shared=shared))
        if options.grpc is not None:
            from ratekeeper.service.envoy.server import open_envoy

            envoy = await open_envoy(self.keeper, options, parse_address(options.grpc, "--grpc"))
            self.doors.append(envoy)
            self.addresses["grpc"] = envoy.address
        self.site.doors = [door for door in self.doors if hasattr(door, "connections")]
        self.clock = asyncio.get_running_loop().create_task(self.keep_time())

    async def enter(self, door: Any, sock: socket.socket) -> None:
        self.addresses[door.name] = sock.getsockname()[:2]
        await door.open(sock)
        self.doors.append(door)

    async def keep_time(self) -> None:
        """Look at the switches, write the tally, draw the dashboard, ask after the store."""
        beat = 0
        alive = watchdog()
        while True:
            try:
                if alive is not None:  # the loop turns: that is what being alive means here
                    notify("WATCHDOG=1")
                self.keeper.tick()
                self.colleagues.write()
                if beat % 2 == 0:
                    self.site.tick()
                if beat % 10 == 0:
                    await self.site.probe()
            except Exception:  # a dashboard that fails must not end decisions
                log.exception("the clock of worker %d failed", self.number)
            beat += 1
            await asyncio.sleep(EVERY)

    def reload(self) -> None:
        try:
            self.keeper.reload()
        except InvalidInput as error:
            log.error("rules not reloaded, the old ones stay: %s", error)

    async def close(self) -> None:
        """Turn red, wait for balancers to notice, finish what is under way, end."""
        self.keeper.is_ready = False
        for door in self.doors:
            if hasattr(door, "turn_red"):
                await door.turn_red()
        await asyncio.sleep(self.options.drain)
        await asyncio.gather(*[door.close(self.options.patience) for door in self.doors])
        if self.clock is not None:
            self.clock.cancel()
            with suppress(asyncio.CancelledError):
                await self.clock
        self.colleagues.write()
        store: Any = self.keeper.policy.opened_async_store
        if store is not None:
            await store.close()
        self.keeper.policy.close()
        self.ended.set()


def run(
    options: Options, number: int, secret: bytes, opened: Callable[[Worker], object], lifeline: int | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, or until ``lifeline`` breaks; ``opened`` is called when all doors are open."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # none is lost, and none kills, while doors open

    async def main() -> None:
        worker = Worker(options, number, secret)
        await worker.open()
        loop = asyncio.get_running_loop()
        closing: list[asyncio.Task[None]] = []

        def end() -> None:
            if not closing:
                notify("STOPPING=1")
                closing.append(loop.create_task(worker.close()))

        def reload() -> None:
            reloading()
            worker.reload()
            notify("READY=1")

        loop.add_signal_handler(signal.SIGTERM, end)
        loop.add_signal_handler(signal.SIGINT, end)
        loop.add_signal_handler(signal.SIGHUP, reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if lifeline is not None:  # can be read when nobody holds its other end any more

            def orphaned() -> None:
                loop.remove_reader(lifeline)
                log.error("the master of worker %d is gone; it ends too", number)
                end()

            loop.add_reader(lifeline, orphaned)
        opened(worker)
        collect(freeze=True)
        await worker.ended.wait()

    try:
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            runner.run(main())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # pragma: no cover - PyPy
        return None
    return uvloop.new_event_loop

"""One worker: opens the listeners, does the periodic work, and shuts down in order.

Shutdown: health checks fail, the listeners stay open for ``drain`` seconds so that load balancers notice, then each
answer ends its connection, new connections are refused when the old ones have ended, and the worker ends.
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
from ratekeeper.service.decider import Decider, expect_requests
from ratekeeper.service.http.reservation_token import Seal
from ratekeeper.service.http.routes import HttpRoutes
from ratekeeper.service.http.server import HttpListener
from ratekeeper.service.options import Options, parse_address
from ratekeeper.service.retired_limits import collect
from ratekeeper.service.systemd import notify, notify_reloading, watchdog
from ratekeeper.service.tls import certificates_of
from ratekeeper.service.worker_counters import WRITE_EVERY, WorkerCounters

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("ratekeeper")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the first two end a worker, the last reloads its rules


def policy_for(options: Options) -> Policy:
    """The policy of the rules file; without a file a policy without rules, whose callers name their limits."""
    if options.rules is not None:
        policy = Policy.load(options.rules, store=options.store)
        expect_requests(policy.compiled.settings)
        return policy
    empty: dict[str, Any] = {"rules": [], "store": options.store or "memory://"}
    return Policy.parse(empty)


def bind(address: str, option: str, *, shared: bool) -> socket.socket:
    """A socket bound to ``address``; ``shared`` lets every worker bind its own."""
    host, port = parse_address(address, option)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.setblocking(False)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise InvalidInput(
            f"{option}: expected an address that can be listened on, got {address!r}: {error.strerror}. "
            "Choose another port, or end what listens there."
        ) from error
    return sock


def try_addresses(options: Options) -> None:
    """Raise if an address is taken, before any is opened.

    A worker's own bind would not notice: it shares its port with every process that sets SO_REUSEPORT.
    """
    seen: dict[tuple[str, int], str] = {}
    for name in ("http", "grpc", "resp"):
        address = getattr(options, name)
        if address is None:
            continue
        place = parse_address(address, f"--{name}")
        if place[1] and place in seen:
            raise InvalidInput(f"--{name}: expected an address of its own, got {address!r}, that of {seen[place]}.")
        seen[place] = f"--{name}"
        bind(address, f"--{name}", shared=False).close()


class Worker:
    """A running service in one process."""

    def __init__(self, options: Options, number: int = 0, secret: bytes = b"") -> None:
        self.options = options
        self.number = number
        self.decider = Decider(policy_for(options), options)
        self.worker_counters = WorkerCounters(options.state, number, self.decider.counters)
        file_secret = self.decider.settings.secret  # shared by a fleet; ``secret`` by the workers of this service only
        self.seal = Seal(file_secret.encode() if file_secret else secret)
        self.routes = HttpRoutes(self.decider, self.worker_counters, self.seal)
        self.certificates = certificates_of(options)
        self.renewal: asyncio.Task[Any] | None = None
        self.listeners: list[Any] = []
        self.ended = asyncio.Event()
        self.periodic: asyncio.Task[None] | None = None
        self.addresses: dict[str, tuple[str, int]] = {}

    async def open(self) -> None:
        options, shared = self.options, self.options.workers > 1
        self.decider.policy.warm_up(for_loop=True)
        if options.http is not None:
            counters, faults = self.decider.counters, self.decider.faults
            http = HttpListener(self.routes.route, options.bounds, counters.turned_away, faults, self.routes.screen)
            self.routes.dashboard.listener = http
            await self.add(http, bind(options.http, "--http", shared=shared))
        if options.resp is not None:
            from ratekeeper.service.resp import RespListener

            resp = RespListener(self.decider, options.bounds)
            await self.add(resp, bind(options.resp, "--resp", shared=shared))
        if options.grpc is not None:
            await self.open_grpc(options.grpc)
        self.routes.listeners = [listener for listener in self.listeners if hasattr(listener, "connections")]
        self.periodic = asyncio.get_running_loop().create_task(self.work_periodically())

    async def open_grpc(self, address: str) -> None:
        """Serve gRPC over our own HTTP/2 session if that was built, else with grpcio's server."""
        from ratekeeper.service.http2_listener import has_session

        if has_session():
            from ratekeeper.service.envoy.http2 import Http2EnvoyListener

            listener = Http2EnvoyListener(self.decider, self.options)
            await self.add(listener, bind(address, "--grpc", shared=self.options.workers > 1))
            return
        from ratekeeper.service.envoy.server import open_envoy

        envoy = await open_envoy(self.decider, self.options, parse_address(address, "--grpc"), self.certificates)
        self.listeners.append(envoy)
        self.addresses["grpc"] = envoy.address

    async def add(self, listener: Any, sock: socket.socket) -> None:
        self.addresses[listener.name] = sock.getsockname()[:2]
        certificates = self.certificates
        context = None if certificates is None else certificates.context_for(listener.name)
        await listener.open(sock, context)
        self.listeners.append(listener)

    async def work_periodically(self) -> None:
        """Follow overrides, write the counters, refresh the dashboard, probe the store."""
        turn = 0
        has_watchdog = watchdog() is not None
        while True:
            try:
                if has_watchdog:  # the event loop runs: that is what being alive means here
                    notify("WATCHDOG=1")
                self.decider.tick()
                self.worker_counters.write()
                if turn % 2 == 0:
                    self.routes.dashboard.tick()
                if turn % 10 == 0:
                    await self.routes.dashboard.probe()
            except Exception:  # a failing dashboard must not end decisions
                log.exception("the periodic work of worker %d failed", self.number)
            turn += 1
            await asyncio.sleep(WRITE_EVERY)

    async def reload(self) -> None:
        try:
            await self.decider.reload_aside()
        except InvalidInput as error:
            log.error("rules not reloaded, the present rules stay: %s", error)
        try:
            self.renew_certificates()
        except InvalidInput as error:
            log.error("certificates not reloaded, the present ones stay: %s", error)

    def renew_certificates(self) -> None:
        """Read the certificates again, for new connections."""
        certificates = certificates_of(self.options)
        if certificates is None:
            return
        self.certificates = certificates

        async def renew() -> None:
            for listener in self.listeners:
                is_grpcio = not hasattr(listener, "connections")
                await listener.renew(certificates if is_grpcio else certificates.context_for(listener.name))

        self.renewal = asyncio.get_running_loop().create_task(renew())
        log.info("certificates reloaded")

    async def close(self) -> None:
        """Fail health checks, wait for load balancers to notice, answer the requests under way, end."""
        self.decider.is_ready = False
        for listener in self.listeners:
            if hasattr(listener, "fail_health"):
                await listener.fail_health()
        await asyncio.sleep(self.options.drain)
        await asyncio.gather(*[listener.close(self.options.patience) for listener in self.listeners])
        if self.periodic is not None:
            self.periodic.cancel()
            with suppress(asyncio.CancelledError):
                await self.periodic
        self.worker_counters.write()
        store: Any = self.decider.policy.opened_async_store
        if store is not None:
            await store.close()
        self.decider.policy.close()
        self.ended.set()


def run(
    options: Options, number: int, secret: bytes, on_open: Callable[[Worker], object], lifeline: int | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, or until ``lifeline`` breaks; calls ``on_open`` when all listeners are open."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # while opening, a signal must neither kill nor be lost

    async def main() -> None:
        worker = Worker(options, number, secret)
        await worker.open()
        loop = asyncio.get_running_loop()
        closing: list[asyncio.Task[None]] = []

        def end() -> None:
            if not closing:
                notify("STOPPING=1")
                closing.append(loop.create_task(worker.close()))

        async def reload_now() -> None:
            notify_reloading()
            await worker.reload()
            notify("READY=1")

        reloads: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = loop.create_task(reload_now())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGTERM, end)
        loop.add_signal_handler(signal.SIGINT, end)
        loop.add_signal_handler(signal.SIGHUP, reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if lifeline is not None:  # becomes readable when the supervisor, which holds the other end, has ended

            def on_orphaned() -> None:
                loop.remove_reader(lifeline)
                log.error("the supervisor of worker %d has ended, so the worker ends too", number)
                end()

            loop.add_reader(lifeline, on_orphaned)
        on_open(worker)
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

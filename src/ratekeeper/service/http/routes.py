"""The paths of the HTTP listener, health checks and metrics."""

from __future__ import annotations

import asyncio
import resource
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import shown
from ratekeeper.service.http.admin import Admin, has_token, unauthorised
from ratekeeper.service.http.api import Api
from ratekeeper.service.http.dashboard import Dashboard
from ratekeeper.service.http.forward_auth import PREFIX, ForwardAuth
from ratekeeper.service.http.metrics import MEDIA, exposition
from ratekeeper.service.http.origin import refusal
from ratekeeper.service.http.response import TEXT, as_json, problem, response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ratekeeper.service.connection import PendingResponse
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http.reservation_token import Seal
    from ratekeeper.service.http.server import Call, Stream
    from ratekeeper.service.worker_counters import WorkerCounters

    AnyResponse = bytes | PendingResponse | Awaitable[bytes] | Stream

PROBES = frozenset({"/healthz", "/readyz"})
LINES_PER_TURN = 200  # of metrics: about a millisecond


class HttpRoutes:
    """Passes each call to the part of the service that answers its path."""

    def __init__(self, decider: Decider, worker_counters: WorkerCounters, seal: Seal) -> None:
        self.decider = decider
        self.worker_counters = worker_counters
        self.allowed_hosts = frozenset(decider.options.allowed_hosts)
        self.dashboard = dashboard = Dashboard(decider, worker_counters)
        api, auth, admin = Api(decider, seal), ForwardAuth(decider), Admin(decider)
        self.auth = auth.serve
        guarded = self.guarded
        self.paths: dict[str, Callable[[Call], AnyResponse]] = {path: guarded(api.serve) for path in api.calls}
        self.paths |= {
            PREFIX: auth.serve,
            "/": dashboard.page,
            "/healthz": self.healthz,
            "/readyz": self.readyz,
            "/metrics": self.metrics,
            "/openapi.json": self.openapi,
            "/v1/live": guarded(dashboard.live),
            "/v1/status": guarded(dashboard.status),
        }
        self.paths |= dict.fromkeys(admin.calls, admin.serve)
        self.writing: asyncio.Task[bytes] | None = None  # the page of metrics, while it is written
        self.listeners: list[Any] = []  # those whose connections are counted

    def screen(self, call: Call) -> bytes | None:
        """Refuse a call whose Host or Origin may be a stranger's page; proxies and probes need neither."""
        if sum([name == b"host" for name, _ in call.headers]) > 1:
            return problem(400, "host: expected one Host header, got several.")
        path = call.path
        if path in PROBES or path == PREFIX or path.startswith(PREFIX + "/"):
            return None
        return refusal(call, self.allowed_hosts)

    def route(self, call: Call) -> AnyResponse:
        calls = self.decider.counters.calls
        calls["http"] = calls.get("http", 0) + 1
        serve = self.paths.get(call.path)
        if serve is not None:
            return serve(call)
        if call.path.startswith(PREFIX + "/"):
            return self.auth(call)
        return problem(404, f"{shown(call.path)}: expected one of {', '.join(self.paths)}.")

    def guarded(self, serve: Callable[[Call], AnyResponse]) -> Callable[[Call], AnyResponse]:
        """``serve`` for callers with the token, if the service has one."""
        token = self.decider.options.token
        if token is None:
            return serve
        return lambda call: serve(call) if has_token(call, token) else unauthorised()

    def healthz(self, call: Call) -> bytes:
        """Whether this process works at all."""
        return response(200, b"ok\n", TEXT)

    async def readyz(self, call: Call) -> bytes:
        """Whether to send traffic here: not while the service shuts down."""
        is_ready = self.decider.is_ready
        trouble = await self.decider.probe() if is_ready else "closing"
        warnings = list(self.decider.policy.warnings)
        if not trouble and getattr(self.decider.policy.async_store, "evicts_keys", False):
            warnings.append("the store evicts keys: exhausted limits can be forgotten")
        body = {"ready": is_ready, "store": trouble or "answers", "warnings": warnings}
        # A store that does not answer must not take every instance out of service: on_store_error decides then.
        return response(200 if is_ready else 503, as_json(body) + b"\n")

    async def metrics(self, call: Call) -> bytes:
        """The counters of all workers; calls that arrive while a page is written get the same page."""
        if self.writing is None:
            self.writing = asyncio.get_running_loop().create_task(self.write_metrics())
        return await asyncio.shield(self.writing)

    async def write_metrics(self) -> bytes:
        try:
            return await self.metrics_page()
        finally:
            self.writing = None

    async def metrics_page(self) -> bytes:
        lines = []
        for line in exposition(self.worker_counters.all(), self.decider.policy.rules, self.gauges()):
            lines.append(line)
            if len(lines) % LINES_PER_TURN == 0:
                await asyncio.sleep(0)  # let other calls in: with thousands of names, all lines take too long
        return response(200, "\n".join([*lines, ""]).encode("utf-8", "backslashreplace"), MEDIA)

    def gauges(self) -> dict[str, float]:
        decider = self.decider
        connections = {
            f"ratekeeper_{listener.name}_connections": float(len(listener.connections)) for listener in self.listeners
        }
        return {
            "ratekeeper_store_up": float(decider.store_answers),
            "ratekeeper_store_seconds": self.dashboard.store_seconds,
            "ratekeeper_killed": float(decider.overrides.is_killed),
            "ratekeeper_memory_bytes": peak_memory(),
            **connections,
        }

    def openapi(self, call: Call) -> bytes:
        return response(200, files("ratekeeper.service.http").joinpath("openapi.json").read_bytes())


def peak_memory() -> float:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0

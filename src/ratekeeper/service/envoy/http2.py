"""The gRPC listener without grpcio's server, whose calls cost ten times as much.

The same service as in ``envoy/server.py``, with the same answers: the rate limit service, health checks and reflection.
It needs the HTTP/2 session in C; where that was not built, grpcio serves.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ratekeeper.errors import StoreUnavailable
from ratekeeper.protobuf import read_fields, write_number
from ratekeeper.service.envoy.config import load
from ratekeeper.service.envoy.server import NAME, RateLimits
from ratekeeper.service.http2_listener import CallFailed, Http2Listener, StreamingMethod

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http2_listener import StreamCall
    from ratekeeper.service.options import Options

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3  # of grpc.health.v1
INVALID_ARGUMENT, NOT_FOUND = 3, 5  # codes of gRPC
HEALTH_CHECK, HEALTH_WATCH = (f"/{health.SERVICE_NAME}/{method}".encode() for method in ("Check", "Watch"))
REFLECTION = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo".encode()
SHOULD_RATE_LIMIT = f"/{NAME}/ShouldRateLimit".encode()


class AbortedCall(CallFailed, grpc.aio.AbortError):
    """The end of a call by its code, as grpcio's servers end it."""


class CallContext:
    """What a call of grpcio's server has of its context."""

    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise AbortedCall(code.value[0], text)


CONTEXT = CallContext()


def should_rate_limit(limits: RateLimits, raw: bytes) -> bytes | Awaitable[bytes]:
    """RateLimitService.ShouldRateLimit: at once if no store must be asked."""
    try:
        answer = limits.answer_now(raw)
    except StoreUnavailable as error:
        raise CallFailed(grpc.StatusCode.UNAVAILABLE.value[0], f"the store does not answer: {error.why}") from None
    return limits.answer(raw, CONTEXT) if answer is None else answer


class HealthChecks(StreamingMethod):
    """grpc.health.v1.Health: ``check`` answers once, ``Watch`` at each change too."""

    def __init__(self) -> None:
        self.services = {"": SERVING, NAME: SERVING}
        self.watchers: dict[StreamCall, str] = {}

    def check(self, raw: bytes) -> bytes:
        """Health.Check."""
        status = self.services.get(service_of(raw))
        if status is None:
            raise CallFailed(NOT_FOUND, "this service is unknown.")
        return write_number(1, status)

    def receive(self, call: StreamCall, message: bytes) -> None:
        name = service_of(message)
        self.watchers[call] = name
        call.send(write_number(1, self.services.get(name, SERVICE_UNKNOWN)))

    def end(self, call: StreamCall) -> None:
        """A watcher sends one message, and goes on reading."""

    def cancel(self, call: StreamCall) -> None:
        self.watchers.pop(call, None)

    def fail(self) -> None:
        """Tell everybody that no service is ready."""
        for name in self.services:
            self.services[name] = NOT_SERVING
        for call, name in self.watchers.items():
            if name in self.services:
                call.send(write_number(1, NOT_SERVING))


def service_of(raw: bytes) -> str:
    """The name in a HealthCheckRequest."""
    try:
        fields = dict(read_fields(raw))
        name = fields.get(1, b"")
        return name.decode() if isinstance(name, bytes) else ""
    except ValueError:
        raise CallFailed(INVALID_ARGUMENT, "expected a HealthCheckRequest.") from None


class Reflection(StreamingMethod):
    """grpc.reflection.v1alpha: what grpcurl asks."""

    def __init__(self) -> None:
        self.servicer = reflection.ReflectionServicer((NAME, health.SERVICE_NAME, reflection.SERVICE_NAME))

    def receive(self, call: StreamCall, message: bytes) -> None:
        try:
            request = reflection_pb2.ServerReflectionRequest.FromString(message)
        except Exception:
            raise CallFailed(INVALID_ARGUMENT, "expected a ServerReflectionRequest.") from None
        for response in self.servicer.ServerReflectionInfo(iter([request]), None):
            call.send(response.SerializeToString())


class Http2EnvoyListener(Http2Listener):
    """The rate limit service for Envoy."""

    def __init__(self, decider: Decider, options: Options) -> None:
        descriptors = load(options.envoy_config) if options.envoy_config is not None else None
        self.limits = RateLimits(decider, descriptors)
        self.checks = HealthChecks()
        self.config = options.envoy_config
        super().__init__(
            {SHOULD_RATE_LIMIT: partial(should_rate_limit, self.limits), HEALTH_CHECK: self.checks.check},
            {HEALTH_WATCH: self.checks, REFLECTION: Reflection()},
            options.bounds,
            options.token,
            frozenset({HEALTH_CHECK, HEALTH_WATCH}),
            decider.counters.turned_away,
            decider.faults,
        )
        decider.reload_hooks.append(self.reload)

    def reload(self) -> None:
        """Read the configuration again; a file with a mistake raises InvalidRules, and the present limits stay."""
        if self.config is not None:
            self.limits.descriptors = load(self.config)
            self.limits.questions.clear()

    async def fail_health(self) -> None:
        self.checks.fail()

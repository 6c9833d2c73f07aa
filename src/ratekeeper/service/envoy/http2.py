"""The gRPC listener without grpcio's server, whose calls cost ten times as much.

The same service as in ``envoy/server.py``, with the same answers: the rate limit service, health checks and reflection.
It needs the HTTP/2 session in C; where that was not built, grpcio serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ratekeeper.protobuf import read_fields, write_number
from ratekeeper.service.envoy.rate_limits import open_limits
from ratekeeper.service.envoy.server import NAME
from ratekeeper.service.http2_listener import CallFailed, Http2Listener, StreamingMethod

if TYPE_CHECKING:
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http2_listener import StreamCall
    from ratekeeper.service.options import Options

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3  # of grpc.health.v1
INVALID_ARGUMENT, NOT_FOUND = 3, 5  # codes of gRPC
HEALTH_CHECK, HEALTH_WATCH = (f"/{health.SERVICE_NAME}/{method}".encode() for method in ("Check", "Watch"))
REFLECTION = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo".encode()
SHOULD_RATE_LIMIT = f"/{NAME}/ShouldRateLimit".encode()


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
        self.limits = open_limits(decider, options)
        self.checks = HealthChecks()
        super().__init__(
            {SHOULD_RATE_LIMIT: self.limits.call, HEALTH_CHECK: self.checks.check},
            {HEALTH_WATCH: self.checks, REFLECTION: Reflection()},
            options.bounds,
            options.token,
            frozenset({HEALTH_CHECK, HEALTH_WATCH}),
            decider.counters.turned_away,
            decider.faults,
        )

    async def fail_health(self) -> None:
        self.checks.fail()

"""The gRPC listener: Envoy's Rate Limit Service, version 3, with health checks and reflection.

What is decided is the business of ``rate_limits.py``; this is the server of grpcio around it, where ``http2.py`` cannot
be.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ratekeeper.errors import InvalidInput
from ratekeeper.service.envoy.rate_limits import RateLimits, open_limits
from ratekeeper.service.http2_listener import CallFailed

if TYPE_CHECKING:
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.options import Options
    from ratekeeper.service.tls import Certificates

NAME = "envoy.service.ratelimit.v3.RateLimitService"
CODES = {code.value[0]: code for code in grpc.StatusCode}


class EnvoyListener:
    """A gRPC server with this one service."""

    name = "grpc"

    def __init__(
        self, server: Any, checks: Any, limits: RateLimits, address: tuple[str, int],
        credentials: Credentials | None,
    ) -> None:  # fmt: skip
        self.server = server
        self.credentials: Any = credentials
        self.checks = checks
        self.limits = limits
        self.address = address

    async def fail_health(self) -> None:
        for service in ("", NAME):
            await self.checks.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)

    async def renew(self, certificates: Certificates) -> None:
        """Take new connections with other certificates; open connections keep theirs."""
        self.credentials.renewed = certificate_configuration(certificates)

    async def close(self, patience: float) -> None:
        await self.server.stop(patience)


class Credentials:
    """Certificates that gRPC asks for at each handshake."""

    def __init__(self, certificates: Certificates) -> None:
        self.renewed: Any = None  # since the last handshake
        self.is_mutual = certificates.client_ca is not None
        self.server_credentials = grpc.dynamic_ssl_server_credentials(
            certificate_configuration(certificates), self.fetch, require_client_authentication=self.is_mutual
        )

    def fetch(self) -> Any:
        """The configuration if it has changed, else None; gRPC calls this from threads of its own."""
        renewed, self.renewed = self.renewed, None
        return renewed


def certificate_configuration(certificates: Certificates) -> Any:
    return grpc.ssl_server_certificate_configuration([(certificates.key, certificates.chain)], certificates.client_ca)


class TokenCheck(grpc.aio.ServerInterceptor):
    """Requires ``authorization: Bearer TOKEN`` of every call except health checks, which orchestrators make."""

    def __init__(self, token: str) -> None:
        self.token = token.encode()

        async def reject(request: Any, context: Any) -> None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "expected 'authorization: Bearer TOKEN' with the token."
            )

        self.rejection: Any = grpc.unary_unary_rpc_method_handler(reject)

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if not details.method.startswith(f"/{health.SERVICE_NAME}/"):
            sent = [value for name, value in details.invocation_metadata if name == "authorization"]
            scheme, _, token = str(sent[0]).partition(" ") if len(sent) == 1 else ("", "", "")
            is_known = compare_digest(token.strip().encode("utf-8", "replace"), self.token)
            if scheme.lower() != "bearer" or not is_known:
                return self.rejection
        return await continuation(details)


def add_to_server(limits: RateLimits, server: Any) -> None:
    async def answer(raw: bytes, context: Any) -> bytes:
        try:
            return await limits.answer(raw)
        except CallFailed as error:
            await context.abort(CODES[error.code], str(error))
            raise

    method: Any = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {"ShouldRateLimit": method}),))


async def open_envoy(
    decider: Decider, options: Options, address: tuple[str, int], certificates: Certificates | None = None
) -> EnvoyListener:
    """Open the gRPC listener with grpcio's server; port 0 takes any free port."""
    limits = open_limits(decider, options)
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", int(options.workers > 1)),
            ("grpc.max_receive_message_length", options.bounds.body),
            ("grpc.max_metadata_size", options.bounds.head),
            ("grpc.max_concurrent_streams", 1000),
            ("grpc.http2.max_pings_without_data", 2),
            ("grpc.keepalive_time_ms", 60_000),
        ],
        interceptors=() if options.token is None else (TokenCheck(options.token),),
        maximum_concurrent_rpcs=options.bounds.waiting,
    )
    add_to_server(limits, server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for service in ("", NAME):
        await checks.set(service, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    host, port = address
    shown_host = f"[{host}]" if ":" in host else host
    credentials = None if certificates is None else Credentials(certificates)
    try:
        if credentials is None:
            port = server.add_insecure_port(f"{shown_host}:{port}")
        else:
            port = server.add_secure_port(f"{shown_host}:{port}", credentials.server_credentials)
    except RuntimeError:  # older versions of grpcio return 0
        port = 0
    if not port:
        raise InvalidInput(
            f"--grpc: expected an address that is free, got '{shown_host}:{address[1]}'. "
            "Choose another port, or end what listens there."
        )
    await server.start()
    return EnvoyListener(server, checks, limits, (host, port), credentials)

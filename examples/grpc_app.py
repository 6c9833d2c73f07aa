"""gRPC: rules for a server, and a client that reads when it may try again.

Run it: ``python -m examples.grpc_app``, and in another terminal ``python -m examples.grpc_app call``.
Messages are plain bytes here; with generated code, the interceptor is added in the same way.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from ratekeeper.adapters.grpc import RateLimitInterceptor

ADDRESS = f"127.0.0.1:{os.environ.get('PORT', '8000')}"


def create(order: bytes, context: grpc.ServicerContext) -> bytes:
    return b"created: " + order


def serve() -> None:
    rules = RateLimitInterceptor(Path(__file__).with_name("rules.toml"))
    server = grpc.server(ThreadPoolExecutor(4), interceptors=[rules])
    handlers = {"Create": grpc.unary_unary_rpc_method_handler(create)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("shop.Orders", handlers)])
    server.add_insecure_port(ADDRESS)
    server.start()
    print(f"serving at {ADDRESS}", flush=True)
    server.wait_for_termination()


def call() -> None:
    with grpc.insecure_channel(ADDRESS) as channel:
        place = channel.unary_unary("/shop.Orders/Create")
        for number in range(6):
            try:
                print(place(b"order %d" % number).decode())
            except grpc.RpcError as error:
                trailers = dict(error.trailing_metadata())
                print(f"{error.code().name}: {error.details()} ({trailers['grpc-retry-pushback-ms']} ms)")


if __name__ == "__main__":
    call() if "call" in sys.argv else serve()

"""gRPC over our own HTTP/2 listener: real clients, many at a time, and how connections end."""

import asyncio
import socket
import threading

import grpc
import pytest
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

from ratekeeper.service import http2_listener
from ratekeeper.service.options import Bounds
from tests.service.running import ANY, running

pytestmark = pytest.mark.skipif(not http2_listener.has_session(), reason="nghttp2 was not there at the build")

LIMITS = "domain: edge\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 100}}\n"


def question(user="u"):
    request = rls_pb2.RateLimitRequest(domain="edge")
    request.descriptors.add().entries.add(key="user", value=user)
    return request


@pytest.fixture
def limits(tmp_path):
    path = tmp_path / "limits.yaml"
    path.write_text(LIMITS)
    return path


def connect(service):
    return grpc.insecure_channel("{}:{}".format(*service.addresses["grpc"]))


def test_many_calls_on_few_connections_admit_exactly_the_limit(limits):
    with running(envoy_config=limits, grpc=ANY, http=None, still=True) as service:
        address = "{}:{}".format(*service.addresses["grpc"])

        async def ask_all():
            channels = [
                grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)
            ]
            asks = [rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit for channel in channels]
            answers = await asyncio.gather(*[asks[number % 4](question()) for number in range(400)])
            for channel in channels:
                await channel.close()
            return [answer.overall_code for answer in answers]

        codes = asyncio.run(ask_all())
        assert (codes.count(1), codes.count(2)) == (100, 300)
        (listener,) = service.worker.listeners
        assert listener.name == "grpc"


def test_a_method_that_is_not_there_is_unimplemented(limits):
    with running(envoy_config=limits, grpc=ANY, http=None) as service, connect(service) as channel:
        call = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/Other")
        with pytest.raises(grpc.RpcError) as failed:
            call(b"")
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_message_above_the_bound_is_refused(limits):
    bounds = Bounds(body=1000)
    with running(envoy_config=limits, grpc=ANY, http=None, bounds=bounds) as service, connect(service) as channel:
        ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit
        with pytest.raises(grpc.RpcError) as failed:
            ask(question("u" * 2000))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ask(question()).overall_code == 1


def test_no_more_calls_wait_for_the_store_than_may(limits):
    with (
        running(envoy_config=limits, grpc=ANY, http=None, bounds=Bounds(waiting=0)) as service,
        connect(service) as channel,
    ):
        with pytest.raises(grpc.RpcError) as failed:
            rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(question())
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert failed.value.details() == "the service is at capacity."


def test_another_protocol_is_hung_up_on(limits):
    with running(envoy_config=limits, grpc=ANY, http=None) as service:
        with socket.create_connection(service.addresses["grpc"], 20) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
            sent = b""
            while part := client.recv(65_536):
                sent += part
        assert b"HTTP/1.1" not in sent


def test_the_end_of_the_service_loses_no_call(limits):
    """Clients call without a pause while the listener closes: each call is answered, or was never taken."""
    codes, begun = [], threading.Event()

    def call_on(channel):
        ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit
        while True:
            try:
                codes.append(ask(question(), timeout=60).overall_code)
            except grpc.RpcError as error:
                codes.append(error.code())
                return
            if len(codes) > 50:
                begun.set()

    with running(envoy_config=limits, grpc=ANY, http=None) as service:
        channels = [connect(service) for _ in range(4)]
        threads = [threading.Thread(target=call_on, args=(channel,)) for channel in channels]
        for thread in threads:
            thread.start()
        assert begun.wait(60)
        (listener,) = service.worker.listeners
        service.run(listener.close(20))
        for thread in threads:
            thread.join(60)
        for channel in channels:
            channel.close()
        assert set(codes) <= {1, 2, grpc.StatusCode.UNAVAILABLE}
        assert codes.count(grpc.StatusCode.UNAVAILABLE) == 4  # each client once, when nobody listened any more
        assert not listener.connections

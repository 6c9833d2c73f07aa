"""Health checks of our own gRPC listener; ``test_server.py`` tests the rest of it and grpcio's alike."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ratekeeper.service import http2_listener
from ratekeeper.service.envoy.http2 import HEALTH_CHECK
from tests.service.running import ANY, running

pytestmark = pytest.mark.skipif(not http2_listener.has_session(), reason="nghttp2 was not there at the build")


@pytest.fixture
def service():
    with running(grpc=ANY, http=None) as service:
        yield service


def connect(service):
    return grpc.insecure_channel("{}:{}".format(*service.addresses["grpc"]))


def test_watchers_hear_of_the_end(service):
    with connect(service) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        unknown = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="x"))
        assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        unknown.cancel()
        (listener,) = service.worker.listeners
        service.run(listener.fail_health())
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


@pytest.mark.parametrize(
    ("raw", "code"), [(b"\x0a\x01x", grpc.StatusCode.NOT_FOUND), (b"\xff", grpc.StatusCode.INVALID_ARGUMENT)]
)
def test_a_check_of_nothing_known_is_an_error(service, raw, code):
    with connect(service) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(HEALTH_CHECK.decode())(raw)
    assert failed.value.code() is code


def test_metrics_count_its_connections():
    with running(grpc=ANY) as service, connect(service) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        status, _, page = service.call("GET", "/metrics")
    assert status == 200
    assert b"\nratekeeper_grpc_connections 1\n" in page

"""Envoy's ``hits_addend`` at its extremes, which a client may bring about: never an error, because Envoy fails open."""

import grpc
import pytest
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import wrappers_pb2

from tests.service.running import ANY, running

OK, OVER = rls_pb2.RateLimitResponse.OK, rls_pb2.RateLimitResponse.OVER_LIMIT
RULES = '[[rules]]\nname = "a"\nmatch = "/a"\nby = "all"\nlimit = "100/hour"\n'
LIMITS = "domain: d\ndescriptors:\n  - {key: path, value: /a, rate_limit: {unit: hour, requests_per_unit: 100}}\n"


@pytest.fixture(params=["rules", "envoy"])
def ask(request, tmp_path):
    (tmp_path / "limits.yaml").write_text(LIMITS)
    options = {"envoy_config": tmp_path / "limits.yaml"} if request.param == "envoy" else {}
    rules = RULES if request.param == "rules" else None
    with (
        running(tmp_path, rules, grpc=ANY, still=True, **options) as service,
        grpc.insecure_channel("{}:{}".format(*service.addresses["grpc"])) as channel,
    ):
        call = channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            rls_pb2.RateLimitRequest.SerializeToString,
            rls_pb2.RateLimitResponse.FromString,
        )

        def answer(hits=0, own=None):
            """The code and what is left, for an addend of the request and one of the descriptor."""
            more = {} if own is None else {"hits_addend": wrappers_pb2.UInt64Value(value=own)}
            entry = ratelimit_pb2.RateLimitDescriptor.Entry(key="path", value="/a")
            descriptor = ratelimit_pb2.RateLimitDescriptor(entries=[entry], **more)
            response = call(
                rls_pb2.RateLimitRequest(domain="d", descriptors=[descriptor], hits_addend=hits), timeout=30
            )
            return response.overall_code, response.statuses[0].limit_remaining

        answer.charges = request.param == "envoy"  # what a descriptor says of itself is known after the response
        yield answer


def test_13_hits_addend_is_honoured_and_its_extremes_are_over_the_limit(ask):
    assert ask() == (OK, 99)
    assert ask(hits=10) == (OK, 89)
    assert ask(own=9) == (OK, 80)
    assert ask(hits=5, own=0) == (OK, 80)  # only looks
    for hits in (2**32 - 1, 101):
        assert ask(hits) == (OVER, 80)
    for own in (2**32, 2**63, 2**64 - 1, 81):
        assert ask(own=own) == (OVER, 0 if ask.charges else 80)
    assert ask(own=80) == ((OVER, 0) if ask.charges else (OK, 0))
    assert ask() == (OVER, 0)
    assert ask(own=0)[1] == 0

"""Envoy's rate limit service: descriptors, statuses, overrides, health, reflection."""

from pathlib import Path

import grpc
import pytest
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper.service import http2_listener
from tests import tier
from tests.service.running import ANY, running

CONFIG = Path(__file__).parent / "ratelimit.yaml"
OK, OVER = 1, 2


def asked(*descriptors, domain="edge", hits=0):
    request = rls_pb2.RateLimitRequest(domain=domain, hits_addend=hits)
    for entries in descriptors:
        one = request.descriptors.add()
        for key, value in entries.items():
            one.entries.add(key=key, value=value)
    return request


def connected(service):
    return grpc.insecure_channel("{}:{}".format(*service.addresses["grpc"]))


@pytest.fixture(scope="module", params=["http2", "grpcio"], autouse=True)
def engine(request):
    """Our own HTTP/2 listener, and grpcio's server: the same service."""
    if request.param == "http2" and not http2_listener.has_session():
        pytest.skip("the HTTP/2 session was not built: nghttp2 was missing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http2_listener, "has_session", lambda: request.param == "http2")
        yield request.param


@pytest.fixture(scope="module")
def channel(engine):
    with running(envoy_config=CONFIG, grpc=ANY, http=None, still=True) as service, connected(service) as found:
        yield found


@pytest.fixture(scope="module")
def ask(channel):
    return rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit


def test_a_limit_admits_its_count(ask):
    answers = [ask(asked({"path": "/limited"})) for _ in range(7)]
    assert [answer.overall_code for answer in answers] == [OK] * 5 + [OVER] * 2
    assert [answer.statuses[0].limit_remaining for answer in answers] == [4, 3, 2, 1, 0, 0, 0]
    status = answers[-1].statuses[0]
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (5, 2)
    assert 0 < status.duration_until_reset.ToTimedelta().total_seconds() <= 60
    headers = {header.key: header.value for header in answers[-1].response_headers_to_add}
    assert 1 <= int(headers["retry-after"]) <= 60
    assert headers["x-ratelimit-remaining"] == "0"


def test_statuses_come_in_order_and_a_refusal_takes_nothing(ask):
    post, other = {"tenant": "t1", "method": "POST"}, {"tenant": "t1"}
    for _ in range(2):
        assert ask(asked(other, post)).overall_code == OK
    refused = ask(asked({"what": "ever"}, post, other))
    assert [status.code for status in refused.statuses] == [OK, OVER, OK]
    assert not refused.statuses[0].HasField("current_limit")
    assert refused.statuses[1].current_limit.name == "posts"
    assert refused.statuses[2].limit_remaining == 98
    assert ask(asked(other)).statuses[0].limit_remaining == 97


def test_values_count_apart_unless_a_wildcard_shares(ask):
    assert [ask(asked({"path": f"/api/{n}"})).overall_code for n in range(5)] == [OK] * 5
    assert [ask(asked({"shared": f"batch-{n}"})).overall_code for n in range(3)] == [OK, OK, OVER]


def test_unlimited_zero_and_shadow(ask):
    assert {ask(asked({"tenant": "u", "method": "PUT"})).overall_code for _ in range(300)} == {OK}
    assert ask(asked({"nobody": "x"})).overall_code == OVER
    assert [ask(asked({"trial": "x"})).overall_code for _ in range(3)] == [OK] * 3


def test_what_passes_in_shadow_is_no_refusal():
    with running(envoy_config=CONFIG, grpc=ANY, http=None, still=True) as service, connected(service) as channel:
        ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit
        assert [ask(asked({"trial": "x"})).overall_code for _ in range(4)] == [OK] * 4
        counters = service.worker.decider.counters
        assert counters.by_rule()["edge.trial"] == {"allowed": 1, "shadow_refused": 3}
        assert counters.most_refused() == []


def test_a_limit_that_replaces_another_switches_it_off(ask):
    both = asked({"tenant": "r", "method": "POST"}, {"vip": "r"})
    assert {ask(both).overall_code for _ in range(5)} == {OK}


def test_hits_at_both_levels(ask):
    assert ask(asked({"tenant": "h"}, hits=30)).statuses[0].limit_remaining == 70
    request = asked({"tenant": "h"}, hits=30)
    request.descriptors[0].hits_addend.value = 5
    assert ask(request).statuses[0].limit_remaining == 65
    request.descriptors[0].hits_addend.value = 0
    for _ in range(2):  # 0 of a descriptor only looks
        assert ask(request).statuses[0].limit_remaining == 65


def test_envoy_can_send_a_limit_along(ask):
    request = asked({"tenant": "o"})
    request.descriptors[0].limit.requests_per_unit = 2
    request.descriptors[0].limit.unit = 3
    assert [ask(request).overall_code for _ in range(3)] == [OK, OK, OVER]
    assert ask(request).statuses[0].current_limit.unit == 3


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (asked({"a": "b"}, domain=""), "domain: expected text, got nothing. Set it in the Envoy filter."),
        (asked(), "descriptors: expected 1 to 100 of them."),
    ],
)
def test_a_mistake_is_an_error(ask, request_, message):
    with pytest.raises(grpc.RpcError) as error:
        ask(request_)
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, message)


def test_an_unknown_domain_passes(ask):
    assert ask(asked({"path": "/limited"}, domain="other")).overall_code == OK


def test_health_and_reflection(channel):
    health = health_pb2_grpc.HealthStub(channel)
    name = "envoy.service.ratelimit.v3.RateLimitService"
    assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1
    reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    services = {one.name for one in next(reflected).list_services_response.service}
    assert name in services


def test_without_a_configuration_descriptors_meet_the_rules(tmp_path):
    rules = '[[rules]]\nname = "writes"\nmatch = "POST /x"\nby = "ip"\nlimit = "2/hour"\n'
    with running(tmp_path, rules, grpc=ANY, http=None, still=True) as service, connected(service) as channel:
        ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit
        request = asked({"remote_address": "198.51.100.1", "method": "POST", "path": "/x"})
        answers = [ask(request) for _ in range(3)]
        assert [answer.overall_code for answer in answers] == [OK, OK, OVER]
        assert answers[2].statuses[0].current_limit.name == "writes"
        headers = {header.key: header.value for header in answers[2].response_headers_to_add}
        assert headers["retry-after"] == "1800"


def test_a_cached_request_is_answered_like_the_first(tmp_path):
    """The first request is parsed, the others are cached: the counter is the same, and a reload clears the cache."""
    config = tmp_path / "limits.yaml"
    text = "domain: edge\ndescriptors:\n  - {{key: user, rate_limit: {{unit: day, requests_per_unit: {}}}}}\n"
    config.write_text(text.format(5))
    with running(envoy_config=config, grpc=ANY, http=None, still=True) as service, connected(service) as channel:
        ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit
        answers = [ask(asked({"user": "u"})) for _ in range(7)]
        assert [answer.statuses[0].limit_remaining for answer in answers] == [4, 3, 2, 1, 0, 0, 0]
        assert {answer.statuses[0].current_limit.requests_per_unit for answer in answers} == {5}
        assert len(service.worker.listeners[0].limits.questions) == 1
        assert ask(asked({"user": "u"}, hits=2)).overall_code == OVER
        service.worker.decider.overrides.kill(True)
        assert ask(asked({"user": "u"})).overall_code == OK
        service.worker.decider.overrides.kill(False)
        config.write_text(text.format(9))
        service.run(service.worker.reload())
        assert [ask(asked({"user": "u"})).statuses[0].current_limit.requests_per_unit for _ in range(2)] == [9, 9]


def test_the_fallback_answers_for_a_dead_store(tmp_path):
    config = tmp_path / "limits.yaml"
    rate = "{unit: day, requests_per_unit: 8}"
    config.write_text(f"domain: edge\ndescriptors:\n  - {{key: user, rate_limit: {rate}}}\n")
    for mode, codes in (("local", [OK] * 4 + [OVER] * 2), ("allow", [OK] * 6)):
        store = f"redis://127.0.0.1:1/0?on_store_error={mode}"
        with running(envoy_config=config, grpc=ANY, http=None, store=store) as service, connected(service) as channel:
            ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit
            assert [ask(asked({"user": "u"})).overall_code for _ in range(6)] == codes
            assert service.worker.decider.counters.store_errors == 6


def test_a_dead_store_that_denies_is_unavailable_and_not_over_the_limit(tmp_path):
    config = tmp_path / "limits.yaml"
    config.write_text("domain: edge\ndescriptors:\n  - {key: user, rate_limit: {unit: day, requests_per_unit: 8}}\n")
    store = "redis://127.0.0.1:1/0?on_store_error=deny"
    with running(envoy_config=config, grpc=ANY, http=None, store=store) as service, connected(service) as channel:
        request, limits = asked({"user": "u"}), service.worker.listeners[0].limits
        for is_cached in (False, True):
            with pytest.raises(grpc.RpcError) as error:
                rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(request)
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE, is_cached
            limits.remember(request.SerializeToString(), request)
        assert service.worker.decider.counters.store_errors == 2


@settings(max_examples=tier.examples(60))
@given(
    st.one_of(
        st.binary(max_size=80), st.binary(max_size=20).map(lambda end: asked({"a": "b"}).SerializeToString() + end)
    )
)
def test_no_bytes_bring_the_listener_down(channel, sent):
    call = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
    answer, outcome = call.with_call(sent, timeout=60) if is_read(sent) else (None, None)
    if outcome is None:
        with pytest.raises(grpc.RpcError) as refused:
            call(sent, timeout=60)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    else:
        assert rls_pb2.RateLimitResponse.FromString(answer).overall_code in (OK, OVER)


def is_read(sent):
    """Whether these bytes are a request that means something."""
    try:
        request = rls_pb2.RateLimitRequest.FromString(sent)
    except DecodeError:
        return False
    has_units = all(one.limit.unit in range(1, 8) for one in request.descriptors if one.HasField("limit"))
    return bool(request.domain) and bool(request.descriptors) and (has_units or request.domain != "edge")


def limit_of(count):
    return f"domain: edge\ndescriptors:\n  - {{key: user, rate_limit: {{unit: day, requests_per_unit: {count}}}}}\n"


def test_a_swapped_link_of_a_config_map_is_noticed(tmp_path, caplog):
    """Kubernetes writes a new folder, and swaps the link that leads to it; the files' own links stay."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()

    def publish(version, text):
        folder = mounted / f"..{version}"
        folder.mkdir()
        (folder / "limits.yaml").write_text(text)
        (mounted / "..new").symlink_to(folder.name)
        (mounted / "..new").replace(mounted / "..data")

    publish(1, limit_of(5))
    (mounted / "limits.yaml").symlink_to("..data/limits.yaml")
    with running(envoy_config=mounted, grpc=ANY, http=None, still=True) as service, connected(service) as channel:
        ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit
        limits = service.worker.listeners[0].limits

        async def follow():
            limits.look_for_changes()
            if limits.following is not None:
                await limits.following

        def count():
            return ask(asked({"user": "u"})).statuses[0].current_limit.requests_per_unit

        service.run(follow())
        assert (count(), count(), limits.following) == (5, 5, None)
        publish(2, limit_of(9))
        service.run(follow())
        assert count() == 9
        publish(3, "domain: [")
        service.run(follow())
        assert count() == 9
        assert service.worker.decider.counters.reloads == {"done": 1, "failed": 1}
        publish(4, limit_of(7))
        service.run(follow())
        assert count() == 7


def test_limits_of_a_file_are_in_status_and_can_be_switched(tmp_path):
    config = tmp_path / "limits.yaml"
    config.write_text(limit_of(1))
    with (
        running(envoy_config=config, grpc=ANY, admin_token="admin", still=True) as service,
        connected(service) as channel,
    ):
        ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit
        assert [ask(asked({"user": "u"})).overall_code for _ in range(2)] == [OK, OVER]

        def row():
            service.worker.routes.dashboard.tick()
            (found,) = service.call("GET", "/v1/status")[2]["table"]
            return found

        assert (row()["name"], row()["mode"], row()["limit"]) == ("edge.user", "enforce", {"everybody": "1/day"})
        assert row()["totals"] == {"allowed": 1, "refused": 1}
        token = {"authorization": "Bearer admin"}
        switch = {"rule": "edge.user", "mode": "shadow"}
        assert service.call("POST", "/v1/admin/switch", switch, token)[2] == {"rule": "edge.user", "mode": "shadow"}
        assert ask(asked({"user": "u"})).overall_code == OK
        assert (row()["mode"], row()["file_mode"]) == ("shadow", "enforce")
        assert service.call("POST", "/v1/admin/switch", {"rule": "edge.nobody"}, token)[0] == 400

"""What people do with envoyproxy/ratelimit, through a real Envoy: ours in both modes, and the real one as a control."""

import time
from contextlib import contextmanager

import pytest
import yaml
from envoy.service.ratelimit.v3 import rls_pb2

from ratekeeper.service.options import EnvoyOptions
from tests.real.proxies import TOOLS, App, application, binary, call, started
from tests.real.upstream import channel_to, method, upstream
from tests.servers import free_port
from tests.service.running import ANY, running

pytestmark = pytest.mark.real
OK, OVER = 1, 2
TYPES = "type.googleapis.com/envoy.extensions"
LIMITS = """
domain: edge
descriptors:
  - key: foo
    descriptors:
      - {key: baz, value: strict, rate_limit: {unit: day, requests_per_unit: 3}}
      - {key: baz, value: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}
      - {key: bar, value: banned, rate_limit: {name: ban, unit: day, requests_per_unit: 0}}
      - {key: bar, value: small, rate_limit: {name: small, unit: day, requests_per_unit: 1}}
  - key: source
    value: proxy
    descriptors:
      - {key: target, value: pardon, rate_limit: {unit: day, requests_per_unit: 2, replaces: [{name: ban}]}}
      - {key: target, value: larger, rate_limit: {unit: day, requests_per_unit: 2, replaces: [{name: small}]}}
      - {key: target, value: named, rate_limit: {unit: day, requests_per_unit: 2, name: named}}
  - key: category
    value: account
    rate_limit: {unit: day, requests_per_unit: 4, replaces: [{name: small}, {name: named}]}
  - {key: unspecified, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: service, value: one, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: service, value: two, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: exact, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: returned, rate_limit: {unit: day, requests_per_unit: 10}}
"""
CHOOSE = """
function envoy_on_request(handle)
  local found = handle:streamInfo():dynamicMetadata():get("envoy.filters.http.ratelimit")
  if found == nil or handle:headers():get(":path") ~= "/choose" then return end
  local used = {}
  for _, number in ipairs(found["quotaModeViolations"] or {}) do used[number] = true end
  local free = (not used[0] and "one") or (not used[1] and "two") or nil
  if free == nil then handle:respond({[":status"] = "429"}, "no service has quota left") end
  handle:headers():replace("x-service", free or "none")
end
"""


def fields(*names):
    """A descriptor of header fields; a request without one of them has no such descriptor."""
    return {"actions": [{"request_headers": {"header_name": name, "descriptor_key": name}} for name in names]}


def named(key, value, **more):
    return {"actions": [{"generic_key": {"descriptor_key": key, "descriptor_value": value}}], **more}


def budget(path, key, cost, **more):
    charge = named(key, "all", hits_addend={"number": cost, **more}, apply_on_stream_done=True)
    return route(path, named(key, "all", hits_addend={"number": 0}), charge)


def route(path, *rate_limits):
    """Envoy reads hits_addend here, and not in the route itself."""
    per_route = {"@type": f"{TYPES}.filters.http.ratelimit.v3.RateLimitPerRoute", "rate_limits": list(rate_limits)}
    return {
        "match": {"path": path},
        "route": {"cluster": "app"},
        "typed_per_filter_config": {"envoy.filters.http.ratelimit": per_route},
    }


ROUTES = [
    route("/two", fields("foo", "baz"), fields("foo", "bar")),
    route("/more", fields("foo", "bar"), fields("source", "target"), fields("category")),
    route("/unspecified", fields("unspecified")),
    route("/choose", named("service", "one"), named("service", "two")),
    budget("/tokens", "tokens", 60),
    budget("/exact", "exact", 1),
    budget("/returned", "returned", 4, is_negative_hits=True),
    {"match": {"prefix": "/"}, "route": {"cluster": "app"}},
]


def cluster(name, port, **more):
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    assignment = {"cluster_name": name, "endpoints": endpoints}
    return {"name": name, "connect_timeout": "5s", "load_assignment": assignment, **more}


def envoy_file(port, admin, limits, app):
    def http_filter(name, kind, **fields):
        typed = {"@type": f"{TYPES}.filters.http.{kind}", **fields}
        return {"name": f"envoy.filters.http.{name}", "typed_config": typed}

    service = {"transport_api_version": "V3", "grpc_service": {"envoy_grpc": {"cluster_name": "limits"}}}
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "edge",
        "route_config": {"virtual_hosts": [{"name": "app", "domains": ["*"], "routes": ROUTES}]},
        "http_filters": [
            http_filter(
                "ratelimit", "ratelimit.v3.RateLimit", domain="edge", timeout="5s", failure_mode_deny=True,
                enable_x_ratelimit_headers="DRAFT_VERSION_03", rate_limit_service=service,
            ),
            http_filter("lua", "lua.v3.Lua", default_source_code={"inline_string": CHOOSE}),
            http_filter("router", "router.v3.Router"),
        ],
    }  # fmt: skip
    http2 = {
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}

    def address(port):
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    return {
        "admin": {"address": address(admin)},
        "static_resources": {
            "listeners": [{"name": "edge", "address": address(port), "filter_chains": [chain]}],
            "clusters": [cluster("app", app), cluster("limits", limits, **http2)],
        },
    }


class Echo(App):
    """Answers with the service that Envoy has chosen."""

    def do_GET(self):
        body = self.headers.get("x-service", "hi").encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Edge:
    """A real Envoy in front of an application, and the service that it asks."""

    def __init__(self, port, limits, ask, service):
        self.port, self.limits, self.ask, self.service = port, limits, ask, service

    def get(self, path, **headers):
        return call(self.port, "GET", path, wait=30, **headers)

    def statuses(self, path, times=1, **headers):
        return [self.get(path, **headers)[0] for _ in range(times)]

    def left(self, key):
        """What a look of our own says is left."""
        request = rls_pb2.RateLimitRequest(domain="edge")
        one = request.descriptors.add()
        one.entries.add(key=key, value="all")
        one.hits_addend.value = 0
        status = self.ask(request).statuses[0]
        return status.limit_remaining if status.code == OK else -1

    def wait_for(self, key, left):
        """Envoy charges after the response, and nobody tells when."""
        until = time.monotonic() + 60
        while self.left(key) != left:
            assert time.monotonic() < until, f"{key}: {self.left(key)} left, expected {left}"
            time.sleep(0.02)


@contextmanager
def ours(folder, **options):
    envoy = EnvoyOptions(headers="off", metadata=True, **options)
    with running(envoy_config=folder / "config", envoy=envoy, grpc=ANY) as service:
        yield service.addresses["grpc"][1], service


@contextmanager
def theirs(folder):
    with upstream(folder, LIMIT_RESPONSE_HEADERS_ENABLED="false") as port:
        yield port, None


@pytest.fixture(params=["ours", "compat", "theirs"])
def edge(request, tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "limits.yaml").write_text(LIMITS)
    makers = {"ours": ours, "compat": lambda folder: ours(folder, compat=True), "theirs": theirs}
    program = binary("envoy", TOOLS / "envoy")
    with makers[request.param](tmp_path) as (limits, service), application(Echo) as app, channel_to(limits) as channel:
        port, admin = free_port(), free_port()
        (tmp_path / "envoy.yaml").write_text(yaml.safe_dump(envoy_file(port, admin, limits, app.port)))
        words = [program, "-c", f"{tmp_path}/envoy.yaml", "--concurrency", "1", "-l", "error", "--disable-hot-restart"]
        with started(words, port, tmp_path):
            yield Edge(port, request.param, method(channel), service)


def test_what_has_no_limit_passes(edge):
    assert edge.statuses("/two", 5, foo="x", baz="other") == [200] * 5
    assert edge.statuses("/elsewhere", 5) == [200] * 5


def test_a_limit_refuses_and_its_fields_come_once(edge):
    answers = [edge.get("/two", foo="pelle", baz="strict") for _ in range(5)]
    assert [status for status, _, _ in answers] == [200, 200, 200, 429, 429]
    assert [answer[1]["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0", "0"]
    assert answers[0][1]["x-ratelimit-limit"].startswith("3, 3;w=86400")  # of Envoy: ours are off
    assert answers[4][1]["x-envoy-ratelimited"] == "true"
    assert edge.statuses("/two", foo="other", baz="strict") == [200]


def test_a_limit_in_shadow_mode_refuses_nothing(edge):
    answers = [edge.get("/two", foo="pelle", baz="trial") for _ in range(6)]
    assert [status for status, _, _ in answers] == [200] * 6
    assert answers[5][1]["x-ratelimit-remaining"] == "0"


def test_a_limit_may_replace_others(edge):
    ban = {"foo": "me", "bar": "banned"}
    assert edge.statuses("/two", **ban) == [429]
    assert edge.statuses("/more", **ban, source="proxy", target="nobody") == [429]
    assert edge.statuses("/more", 3, **ban, source="proxy", target="pardon") == [200, 200, 429]
    small = {"foo": "my", "bar": "small"}
    assert edge.statuses("/more", 3, **small, source="proxy", target="larger") == [200, 200, 429]
    assert edge.statuses("/more", 2, **small, source="proxy", target="other") == [200, 429]  # was not counted before
    both = {**small, "source": "proxy", "target": "named", "category": "account"}
    assert edge.statuses("/more", 5, **both) == [200] * 4 + [429]


def test_a_metric_of_its_own_for_each_value(edge):
    if edge.limits == "theirs":
        pytest.skip("its metrics go to statsd")
    assert edge.statuses("/unspecified", 3, unspecified="a_value") == [200, 200, 429]
    metrics = edge.service.call("GET", "/metrics")[2].decode()
    (line,) = [line for line in metrics.splitlines() if "edge.unspecified_a_value" in line and "refused" in line]
    assert line.endswith((" 1", " 1.0"))


def test_metadata_says_which_service_has_quota_left(edge):
    answers = [edge.get("/choose") for _ in range(4)]
    assert [(status, body) for status, _, body in answers] == [
        (200, b"one"), (200, b"two"), (429, b"no service has quota left"), (429, b"no service has quota left"),
    ]  # fmt: skip


def test_a_token_budget_is_charged_after_the_response(edge):
    statuses = []
    for left in (40, -1, -1):
        statuses += edge.statuses("/tokens")
        edge.wait_for("tokens", left)
    assert statuses == [200, 200, 429]


def test_a_budget_passes_until_more_than_the_limit_is_charged(edge):
    statuses = []
    for left in (1, 0, -1):
        statuses += edge.statuses("/exact")
        edge.wait_for("exact", left)
    assert [*statuses, *edge.statuses("/exact")] == [200, 200, 200, 429]


def test_hits_can_be_given_back(edge):
    if edge.limits == "theirs":
        pytest.skip("the released version does not know is_negative_hits")
    request = rls_pb2.RateLimitRequest(domain="edge")
    one = request.descriptors.add()
    one.entries.add(key="returned", value="all")
    one.hits_addend.value = 9
    assert edge.ask(request).statuses[0].limit_remaining == 1
    for left in (5, 9, 10):
        assert edge.statuses("/returned") == [200]
        edge.wait_for("returned", left)

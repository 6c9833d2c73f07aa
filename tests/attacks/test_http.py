"""Known attacks on rate limiters, by the numbers of the catalogue: identity, keys, paths, headers and responses.

Each is a mistake that shipped in real software; each must stay impossible here.
"""

import asyncio
import random

import pytest

from ratekeeper import InvalidRules, Policy, Request
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.testing import FakeClock

HERE = "203.0.113.9"
PROXY = "10.0.0.1"
SPOOFS = [
    "X-Forwarded-For", "Forwarded", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "X-Client-IP",
    "X-Cluster-Client-IP",
    "Fastly-Client-IP",
]  # fmt: skip


def policy_with(*rules, **settings):
    named = [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]
    return Policy.parse({**settings, "rules": named}, clock=FakeClock(1_000_000.0))


def admitted(policy, requests):
    return sum(policy.check(request).allowed for request in requests)


def buckets(policy):
    """How many subjects have a state of their own."""
    return policy.store.size()


def test_01_rotating_forwarded_addresses_are_one_client():
    policy = policy_with({"limit": "5/minute"})
    rng = random.Random(1)

    def spoof(number):
        address = f"{rng.randrange(1, 223)}.0.2.{number % 256}"
        return Request(
            peer=HERE, headers=[(name, f"for={address}" if name == "Forwarded" else address) for name in SPOOFS]
        )

    assert admitted(policy, map(spoof, range(1000))) == 5
    assert buckets(policy) == 1


@pytest.mark.parametrize("everybody", ["*", "0.0.0.0/0", "::/0", "all"])
def test_02_nobody_can_be_told_to_trust_everybody(everybody):
    with pytest.raises(InvalidRules, match=r"trusted_proxies\[0\]: expected"):
        policy_with({"limit": "5/minute"}, trusted_proxies=[everybody])


def test_03_clients_behind_one_proxy_are_apart():
    policy = policy_with({"limit": "1/minute"}, trusted_proxies=["10.0.0.0/8"])
    clients = [Request(peer=PROXY, headers={"X-Forwarded-For": f"192.0.2.{number}"}) for number in range(100)]
    assert admitted(policy, clients) == 100
    assert admitted(policy, clients) == 0


def test_04_aliases_of_a_header_are_other_headers():
    policy = policy_with({"limit": "1/minute"}, trusted_proxies=["10.0.0.0/8"])
    names = ["X_Forwarded_For", "X.Forwarded.For", "X-Forwarded_For", "x-forwarded-for "]
    requests = [Request(peer=PROXY, headers={name: f"192.0.2.{number}"}) for number, name in enumerate(names)]
    assert admitted(policy, requests) == 1


def test_05_a_removed_header_leaves_the_peer_never_nobody():
    policy = policy_with({"limit": "2/minute"}, trusted_proxies=["10.0.0.0/8"])
    assert admitted(policy, [Request(peer=PROXY)] * 5) == 2
    assert admitted(policy, [Request(peer=None)] * 5) == 2
    assert admitted(policy, [Request(peer="garbage")] * 5) == 2
    by_key = policy_with({"by": "api_key", "limit": "2/minute"})
    assert admitted(by_key, [Request(peer=HERE, headers={"X-Api-Key": ""})] * 3 + [Request(peer=HERE)] * 3) == 2


def test_06_rotation_within_an_ipv6_network_is_one_client():
    policy = policy_with({"limit": "5/minute"})
    rng = random.Random(6)
    addresses = [f"2001:db8:1:2:{rng.randrange(65536):x}:{rng.randrange(65536):x}::{n:x}" for n in range(10_000)]
    assert admitted(policy, [Request(peer=address) for address in addresses]) == 5
    assert policy.check(Request(peer="2001:db8:1:3::1")).allowed


def test_07_an_address_in_two_spellings_has_one_budget():
    policy = policy_with({"limit": "1/minute"})
    spellings = ["1.2.3.4", "::ffff:1.2.3.4", "::FFFF:0102:0304", "0:0:0:0:0:ffff:102:304", "64:ff9b::102:304"]
    assert admitted(policy, [Request(peer=text) for text in spellings]) == 1


def test_08_mapped_addresses_are_not_merged_by_the_prefix():
    policy = policy_with({"limit": "1/minute"}, identity={"ipv6_prefix": 56})
    for form in ("::ffff:192.0.2.{}", "64:ff9b::192.0.2.{}"):
        assert admitted(policy, [Request(peer=form.format(number)) for number in range(1, 50)]) in (49, 0)
    assert buckets(policy) == 49


def test_09_parts_of_a_key_do_not_run_together():
    policy = policy_with({"by": ["app:a", "app:b"], "limit": "1/minute"})
    pairs = [
        ("login", "alice/10.0.0.1"),
        ("login/alice", "10.0.0.1"),
        ("a_b", "c"),
        ("a", "b_c"),
        ("a", "b"),
        ("ab", ""),
    ]
    assert admitted(policy, [Request(peer=HERE, facts={"a": a, "b": b}) for a, b in pairs]) == len(pairs)


def test_10_a_field_that_is_not_the_keys_does_not_split_the_bucket():
    policy = policy_with({"by": lambda request: (request.facts or {}).get("email"), "limit": "2/minute"})
    requests = [Request("POST", "/reset", HERE, query=f"email={number}@example.org") for number in range(50)]
    assert admitted(policy, requests) == 2


def test_11_nobody_is_locked_out_by_a_name_that_was_not_verified():
    policy = policy_with({"by": "user", "limit": "2/minute"}, identity={"user": "jwt:sub", "jwt": {"secret": "s" * 64}})
    import jwt

    forged = jwt.encode({"sub": "victim"}, "t" * 64, "HS256")
    attack = [Request(peer="198.51.100.66", headers={"Authorization": f"Bearer {forged}"})] * 50
    assert admitted(policy, attack) == 2
    honest = jwt.encode({"sub": "victim"}, "s" * 64, "HS256")
    assert admitted(policy, [Request(peer=HERE, headers={"Authorization": f"Bearer {honest}"})] * 5) == 2


VARIANTS = [
    "/login", "/Login", "/LOGIN", "/login/", "//login", "/login//", "/./login", "/x/../login", "/%6cogin", "/%6Cogin",
    "/login?x=1", "/login?", "http://host/login", "https://host:443/login", "/login/.", "/%2e/login", "/x/%2e%2e/login",
    "/login%0a",
]  # fmt: skip


def test_12_variants_of_a_path_are_one_path():
    policy = policy_with({"match": "POST /login", "limit": "3/minute"})
    assert admitted(policy, [Request("POST", path, HERE) for path in VARIANTS]) == 3
    assert buckets(policy) == 1
    routed = policy_with({"by": ["ip", "route"], "limit": "3/minute"})
    assert admitted(routed, [Request("GET", f"/users/{n}", HERE, route="/users/{id}") for n in range(50)]) == 3
    unrouted = policy_with({"by": ["ip", "route"], "limit": "3/minute"})
    assert admitted(unrouted, [Request("GET", f"/users/{n}", HERE) for n in range(50)]) == 3


def test_13_overrides_methods_and_hosts():
    policy = policy_with({"match": "GET /", "limit": "2/minute"})
    headers = {"X-HTTP-Method-Override": "DELETE", "X-HTTP-Method": "DELETE", "X-Method-Override": "DELETE"}
    assert (
        admitted(policy, [Request(method, "/", HERE, headers) for method in ("GET", "HEAD", "get", "GET", "HEAD")]) == 2
    )
    hosted = policy_with({"host": "api.example", "limit": "1/minute"})
    hosts = ["api.example", "Api.Example", "api.example:443", "api.example.", "API.EXAMPLE.:8443"]
    assert admitted(hosted, [Request(peer=HERE, headers={"Host": host}) for host in hosts]) == 1


def test_14_a_batch_costs_what_it_holds():
    policy = policy_with({"limit": "60/minute", "cost": lambda request: (request.facts or {}).get("operations", 1)})
    assert (
        admitted(policy, [Request(peer=HERE, facts={"operations": 50}), Request(peer=HERE, facts={"operations": 50})])
        == 1
    )
    assert admitted(policy, [Request(peer=HERE)] * 20) == 10


def test_22_a_name_that_breaks_a_header_is_refused_at_load():
    for name in ("a\r\nSet-Cookie: x", "a\nb", "a\0b", "a\x7f", 'a"b', "a\\b", "é", "", "a" * 65, "tab\t"):
        with pytest.raises(InvalidRules, match="expected a name of printable ASCII"):
            policy_with({"name": name, "limit": "1/minute"})


@pytest.mark.parametrize("origin", [b"https://a\r\nSet-Cookie: x=1", b"a\0", b"\xff\xfe", b"\x1b[2J"])
def test_22_an_origin_that_breaks_a_header_is_not_sent_back(origin):
    policy = policy_with({"limit": "1/minute"}, response={"cors": ["*"]})
    for _ in range(2):
        verdict = policy.check(Request(peer=HERE, headers=[(b"origin", origin)]))
        assert origin not in b"".join(value for _, value in verdict.headers)
        assert not any(name.startswith(b"access-control") for name, _ in verdict.headers)
    good = policy.check(Request(peer=HERE, headers=[(b"origin", b"https://a.example")]))
    assert (b"access-control-allow-origin", b"https://a.example") in good.headers


def test_23_a_log_line_cannot_be_forged(caplog):
    from ratekeeper.sinks.log import LoggingSink

    policy = policy_with({"limit": "1/minute"})
    policy.listen(LoggingSink())
    for _ in range(3):
        policy.check(
            Request("GET\nERROR", "/\x1b[2J" + "x" * 10**6, HERE, route="/a\r\nERROR all is lost " + "x" * 10**6)
        )
    for record in caplog.records:
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < 500


def test_24_no_secret_is_kept_shown_or_logged(caplog):
    secret = "sk-live-4eC39HqLyjWDarjtT1"
    events = []
    policy = policy_with(
        {"by": "api_key", "limit": "1/minute"}, {"by": ["header:Authorization", "cookie:sid"], "limit": "1/minute"}
    )
    policy.listen(events.append)
    headers = {"X-Api-Key": secret, "Authorization": f"Bearer {secret}", "Cookie": f"sid={secret}"}
    request = Request("GET", f"/?key={secret}", HERE, headers)
    verdicts = [policy.check(request), policy.check(request)]
    texts = [(v.headers, v.body, repr(v)) for v in verdicts]
    shown = repr([policy.store.states_by_layout, events, texts, str(policy.explain(request))])
    assert secret not in shown.replace(f"/?key={secret}", "")
    assert secret not in repr(request)
    assert secret not in caplog.text
    assert HERE not in repr(events) + repr([(v.headers, v.body) for v in verdicts])


BAD = [
    "-1", "-0", "0", "1.5", "1e3", "nan", "inf", "-inf", "NaN", "0x10", "1_000", "٣", "²", "", " ", "1 2", "1,2",
    "9" * 16, "9" * 5000, "true", "None", "+5",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_29_bad_numbers_are_refused_and_change_nothing(text):
    policy = policy_with({"limit": "10/minute", "cost": "header:X-Cost"}, {"limit": "10/minute"})
    value = text.encode("utf-8").decode("latin-1")
    verdict = policy.check(Request(peer=HERE, headers=[("X-Cost", value)]))
    assert (verdict.allowed, verdict.status, verdict.reason) == (False, 400, "cost")
    assert buckets(policy) == 0


@pytest.mark.parametrize("cost", [-1, 1.5, float("nan"), float("inf"), True, "5", [], 10**30])
def test_29_bad_numbers_of_functions(cost):
    policy = policy_with({"limit": "10/minute", "cost": lambda request: cost})
    assert policy.check(Request(peer=HERE)).status == 400


def test_29_a_cost_of_0_only_looks_and_only_a_function_may_say_it():
    policy = policy_with({"limit": "2/minute", "cost": lambda request: 0})
    assert [policy.check(Request(peer=HERE)).remaining for _ in range(3)] == [2, 2, 2]
    policy = policy_with({"limit": "2/minute", "cost": "header:X-Cost"})
    assert policy.check(Request(peer=HERE, headers=[("X-Cost", "0")])).status == 400


def test_29_two_costs_are_none():
    policy = policy_with({"limit": "10/minute", "cost": "header:X-Cost"})
    assert policy.check(Request(peer=HERE, headers=[("X-Cost", "1"), ("X-Cost", "9")])).status == 400


def test_30_zero_is_never_read_as_no_limit():
    for limit in ("0/minute", "0 per day"):
        assert policy_with({"limit": limit}).check(Request(peer=HERE)).status == 429
    with pytest.raises(InvalidRules):
        policy_with({"limit": "5/minute burst 0"})
    assert policy_with({"allow_from": []}).check(Request(peer=HERE)).status == 403


def test_35_a_herd_is_spread_and_nobody_is_early():
    policy = policy_with({"limit": "1/minute", "by": "all"}, response={"jitter": "30 seconds"})
    policy.check(Request(peer=HERE))
    waits = [policy.check(Request(peer=f"192.0.2.{number}")).wait for number in range(200)]
    assert min(waits) >= 60
    assert max(waits) <= 90
    assert len(set(waits)) > 20


def test_38_a_client_that_leaves_after_the_decision_has_been_counted():
    policy = policy_with({"limit": "2/minute"})

    async def app(scope, receive, send):
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    async def one():
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "client": (HERE, 1)}
        await RateLimitMiddleware(app, policy)(scope, None, None)

    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(one())
    assert not policy.check(Request(peer=HERE)).allowed


def test_39_nobody_sees_how_another_user_stands():
    policy = policy_with(
        {"by": "user", "limit": "10/minute"}, identity={"user": "jwt:sub", "jwt": {"secret": "s" * 64}}
    )
    import jwt

    token = jwt.encode({"sub": "victim"}, "s" * 64, "HS256")
    for _ in range(7):
        policy.check(Request(peer=HERE, headers={"Authorization": f"Bearer {token}"}))
    forged = jwt.encode({"sub": "victim"}, "t" * 64, "HS256")
    headers = dict(policy.check(Request(peer="198.51.100.66", headers={"Authorization": f"Bearer {forged}"})).headers)
    assert headers[b"x-ratelimit-remaining"] == b"9"


def test_40_known_and_unknown_users_are_answered_alike():
    policy = policy_with({"by": "user", "limit": "1/minute"}, identity={"user": "app:user"})
    answers = []
    for facts in ({"user": "exists"}, {"user": "made up"}):
        verdicts = [policy.check(Request(peer=HERE, facts=facts)) for _ in range(2)]
        answers.append([(v.status, [name for name, _ in v.headers], sorted(v.body)) for v in verdicts])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("body", ["json", "problem", "text", "none"])
@pytest.mark.parametrize("headers", [[], ["x-ratelimit"], ["draft-11"], ["draft-3", "draft-6", "draft-7"]])
@pytest.mark.parametrize("shown", [True, False])
def test_41_no_refusal_crashes_whatever_is_switched_off(body, headers, shown):
    policy = policy_with(
        {"limit": "1/minute", "headers": shown, "cost": "header:X-Cost"},
        {"match": "/admin", "allow_from": []},
        response={"body": body, "headers": headers, "cors": ["*"]},
    )
    seen = set()
    for path, cost in (("/", "1"), ("/", "1"), ("/", "99"), ("/", "x"), ("/admin", "1")):
        for method in ("GET", "HEAD"):
            verdict = policy.check(Request(method, path, HERE, {"X-Cost": cost, "Origin": "https://a.example"}))
            seen.add(verdict.status)
            assert all(type(part) is bytes for field in verdict.headers for part in field)
            assert (verdict.body == b"") is (verdict.allowed or body == "none")
    assert seen == {200, 429, 400, 403}


@pytest.mark.parametrize(
    "limit",
    ["1/minute leaky_bucket", ["1/minute leaky_bucket", "100/hour"], ["100/hour", "3/minute leaky_bucket burst 1"],
     ["2/minute leaky_bucket", "9/hour leaky_bucket"], ["1/minute", "5/hour sliding_log"], "1 concurrent"],
)  # fmt: skip
@pytest.mark.parametrize("more", [{}, {"max_delay": "1 second"}, {"grace": 1}, {"warn_at": 0.1}])
def test_41_no_kind_of_limit_crashes_when_it_refuses(limit, more):
    if limit == "1 concurrent" and more:
        more = {}
    policy = policy_with({"limit": limit, **more}, {"by": "all", "limit": "1000/second"})
    for _ in range(12):
        verdict = policy.check(Request(peer=HERE))
        assert verdict.body or verdict.allowed
        assert dict(verdict.headers)[b"ratelimit"]
        assert verdict.allowed or (verdict.status, verdict.rule) == (429, "r0")
    assert not verdict.allowed
    assert verdict.retry_after > 0
    policy.clock.advance(verdict.wait)
    if limit != "1 concurrent":
        assert policy.check(Request(peer=HERE)).allowed  # never early


def test_42_a_refused_call_burns_no_other_rule():
    policy = policy_with({"limit": "100/hour"}, {"limit": "5/minute"}, {"by": "all", "limit": "50/minute"})
    assert admitted(policy, [Request(peer=HERE)] * 1000) == 5
    steps = policy.explain(Request(peer=HERE)).steps
    assert "95 of 100 left" in steps[0].text
    assert "45 of 50 left" in steps[2].text

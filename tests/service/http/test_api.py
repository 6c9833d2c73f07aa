"""The HTTP API: what each call answers, and that it is the library's own answer."""

import json
from importlib.resources import files

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from ratekeeper import Decision
from ratekeeper.service.http.routes import AT_ONCE
from ratekeeper.service.options import Bounds
from ratekeeper.stores import SCHEMES
from tests.service.running import ANY, running

RULES = """
trusted_proxies = ["127.0.0.1"]

[[rules]]
name = "per-ip"
by = "ip"
limit = "5/hour"

[[rules]]
name = "post"
match = "POST /submit"
by = "ip"
limit = "2/hour"

[[rules]]
name = "later"
match = "/shadow"
by = "ip"
limit = "1/hour"
mode = "shadow"
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    with running(folder, RULES, admin_token="open sesame", state=folder, still=True) as found:
        yield found


def test_a_limit_admits_its_count_and_refuses_the_next(service):
    answers = [service.post("/v1/check", {"key": "a", "limit": "3/hour"}) for _ in range(5)]
    assert [body["allowed"] for _, _, body in answers] == [True, True, True, False, False]
    assert [body["remaining"] for _, _, body in answers] == [2, 1, 0, 0, 0]
    assert {status for status, _, _ in answers} == {200}
    assert answers[-1][2]["retry_after"] == 1200


def test_deny_status_is_the_status_of_a_refusal_only(service):
    first = service.post("/v1/check?deny_status=429", {"key": "d", "limit": "1/hour"})
    second = service.post("/v1/check?deny_status=429", {"key": "d", "limit": "1/hour"})
    assert (first[0], second[0]) == (200, 429)
    assert second[1]["retry-after"] == "3600"


def test_several_checks_are_all_or_nothing(service):
    tight = {"key": "s", "limit": "1/hour", "name": "tight"}
    wide = {"key": "s", "limit": "10/hour", "name": "wide"}
    assert service.post("/v1/check", {"checks": [tight, wide]})[2]["allowed"]
    _, _, body = service.post("/v1/check", {"checks": [wide, tight]})
    assert not body["allowed"]
    assert [one["name"] for one in body["decisions"]] == ["wide", "tight"]
    assert service.post("/v1/peek", wide)[2]["remaining"] == 9  # the refusal took nothing


def test_keys_of_several_parts_do_not_collide(service):
    limit = {"limit": "1/hour", "name": "parts"}
    assert service.post("/v1/check", {"key": ["a/b", "c"], **limit})[2]["allowed"]
    assert service.post("/v1/check", {"key": ["a", "b/c"], **limit})[2]["allowed"]
    assert not service.post("/v1/check", {"key": ["a", "b/c"], **limit})[2]["allowed"]


def test_a_described_request_meets_the_rules(service):
    request = {"method": "POST", "path": "/submit", "ip": "198.51.100.1"}
    answers = [service.post("/v1/check", {"request": request, "headers": True})[2] for _ in range(3)]
    assert [body["allowed"] for body in answers] == [True, True, False]
    assert answers[2]["rule"] == "post"
    assert answers[2]["status"] == 429
    assert answers[2]["headers"]["retry-after"] == "1800"
    explained = service.post("/v1/explain", {"request": request})[2]
    assert [one["applies"] for one in explained["rules"]] == [True, True, False]


def test_a_named_rule_lends_its_limit(service):
    answers = [service.post("/v1/check", {"rule": "post", "key": "somebody"})[2] for _ in range(3)]
    assert [body["allowed"] for body in answers] == [True, True, False]


def test_what_is_reserved_is_settled_once_for_what_was_used(service):
    taken = service.post("/v1/reserve", {"key": "r", "limit": "10/hour", "cost": 8})[2]
    assert taken["remaining"] == 2
    settled = {"reservation": taken["reservation"], "actual": 3}
    assert service.post("/v1/settle", settled)[2]["remaining"] == 7
    status, _, body = service.post("/v1/settle", settled)
    assert status == 409
    assert body["detail"] == "reservation: expected to be settled once, but it was settled already."
    more = service.post("/v1/reserve", {"key": "r", "limit": "10/hour", "cost": 2})[2]["reservation"]
    assert service.post("/v1/settle", {"reservation": more, "actual": 4})[2]["remaining"] == 3
    forged = service.post("/v1/settle", {"reservation": more[:-4] + "AAAA", "actual": 0})
    assert forged[0] == 400


def test_refund_and_reset_give_back(service):
    check = {"key": "g", "limit": "4/hour"}
    service.post("/v1/check", {**check, "cost": 4})
    assert service.post("/v1/refund", {**check, "cost": 3})[2]["remaining"] == 3
    assert service.post("/v1/reset", check)[2] == {"reset": True}
    assert service.post("/v1/peek", check)[2]["remaining"] == 4


MISTAKES = [
    ("not json", "/v1/check: expected a JSON object in the body, got something else."),
    ("[1]", "/v1/check: expected a JSON object in the body, got list."),
    ({}, "/v1/check: expected 'key', 'request', or 'checks' with 1 to 100 of them."),
    ({"key": "a"}, "check: expected a limit such as '100/minute', or the name of a rule."),
    ({"key": "a", "limt": "1/s"}, "'limt': expected one of cost, key, limit, name, rule. Did you mean 'limit'?"),
    ({"key": "a", "rule": "x"}, "rule: expected the name of a rule (per-ip, post, later), got 'x'."),
    ({"checks": [1]}, "checks[0]: expected an object, got 1."),
    ({"request": {"path": 1}}, "request.path: expected text, got 1."),
]


@pytest.mark.parametrize(("body", "detail"), MISTAKES)
def test_a_mistake_is_told_as_a_problem(service, body, detail):
    status, fields, found = service.post("/v1/check", body)
    assert (status, fields["content-type"]) == (400, "application/problem+json")
    assert found["detail"] == detail


BAD_COSTS = [0, -1, 1.5, "1", True, None, 10**16, [1], {"a": 1}]


@pytest.mark.parametrize("cost", BAD_COSTS)
def test_a_bad_cost_is_refused_and_takes_nothing(service, cost):
    check = {"key": "costs", "limit": "4/hour"}
    assert service.post("/v1/check", {**check, "cost": cost})[0] == 400
    assert service.post("/v1/peek", check)[2]["remaining"] == 4


def test_other_methods_and_paths_are_told(service):
    assert service.call("GET", "/v1/check")[0] == 405
    assert service.call("GET", "/nowhere")[0] == 404


def test_auth_counts_the_original_request_of_a_trusted_proxy(service):
    headers = {"X-Original-Method": "POST", "X-Original-URI": "/submit?x=1", "X-Forwarded-For": "198.51.100.7"}
    answers = [service.call("GET", "/v1/auth", headers=headers) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 429]
    assert answers[2][1]["retry-after"] == "1800"
    status, fields, _ = service.call("GET", "/v1/auth?deny_status=403", headers=headers)
    assert (status, fields["x-ratelimit-status"], fields["retry-after"]) == (403, "429", "1800")


def test_auth_reads_what_traefik_and_caddy_write(service):
    headers = {"X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/submit", "X-Forwarded-For": "198.51.100.8"}
    assert [service.call("GET", "/v1/auth", headers=headers)[0] for _ in range(3)] == [200, 200, 429]


def test_auth_reads_the_request_itself_behind_a_prefix(service):
    headers = {"X-Forwarded-For": "198.51.100.9"}
    assert [service.call("POST", "/v1/auth/submit", headers=headers)[0] for _ in range(3)] == [200, 200, 429]


def test_a_client_cannot_choose_what_it_is_counted_as(service):
    """A proxy passes a client's own headers on: both families at once are refused unless one is chosen."""
    both = {"X-Original-Method": "GET", "X-Original-URI": "/", "X-Forwarded-Method": "POST",
            "X-Forwarded-Uri": "/submit", "X-Forwarded-For": "198.51.100.10"}  # fmt: skip
    assert service.call("GET", "/v1/auth", headers=both)[0] == 400
    chosen = [service.call("GET", "/v1/auth?headers=forwarded", headers=both)[0] for _ in range(3)]
    assert chosen == [200, 200, 429]


def test_auth_believes_no_other_peer(tmp_path):
    with running(tmp_path, RULES.replace("127.0.0.1", "192.0.2.1")) as service:
        headers = {"X-Original-Method": "GET", "X-Original-URI": "/"}
        status, _, body = service.call("GET", "/v1/auth", headers=headers)
        assert status == 403
        assert body["detail"] == "auth: expected a proxy that trusted_proxies names, got another peer."


def test_health_and_metrics(service):
    assert service.call("GET", "/healthz")[0] == 200
    for _ in range(2):
        service.post("/v1/check", {"key": "m", "limit": "1/hour"})
    status, _, body = service.call("GET", "/readyz")
    assert (status, body["ready"], body["store"]) == (200, True, "answers")
    text = service.call("GET", "/metrics")[2].decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    results = {sample.labels["result"] for sample in families["ratekeeper_decisions"].samples}
    assert {"allowed", "refused"} <= results
    assert families["ratekeeper_store_up"].samples[0].value == 1
    assert "198.51.100" not in text


def test_whoever_is_refused_is_seen_by_digest_at_every_door():
    with running(resp=ANY) as service:
        for _ in range(3):
            service.post("/v1/check", {"key": ["a", 1], "limit": "1/hour"})
        with redis.Redis(port=service.addresses["resp"][1]) as client:
            for _ in range(5):
                client.execute_command("CL.THROTTLE", "me", 0, 1, 3600)
        keeper = service.worker.keeper
        for door in service.worker.doors:  # what the second's turn does
            service.loop.call_soon_threadsafe(door.timer.cancel)
            service.loop.call_soon_threadsafe(door.sweep)
        service.call("GET", "/healthz")
        assert sorted(count for _, count in keeper.tally.most_refused()) == [2, 4]
        names = "".join(name for name, _ in keeper.tally.most_refused())
        assert "me" not in names
        assert set(names) <= set("0123456789abcdef")


def test_the_openapi_document_names_the_paths_that_are_served(service):
    document = service.call("GET", "/openapi.json")[2]
    assert document == json.loads(files("ratekeeper.service.http").joinpath("openapi.json").read_text())
    assert set(document["paths"]) == set(service.worker.site.paths) - {"/"}


def test_switches_need_the_token_and_change_the_rules(service):
    request = {"request": {"path": "/shadow", "ip": "198.51.100.20"}}
    asked = {"rule": "later", "mode": "enforce"}
    assert service.post("/v1/admin/switch", asked)[0] == 401
    token = {"Authorization": "Bearer open sesame"}
    assert [service.post("/v1/check", request)[2]["allowed"] for _ in range(2)] == [True, True]
    assert service.post("/v1/admin/switch", asked, **token)[2] == {"rule": "later", "mode": "enforce"}
    assert not service.post("/v1/check", request)[2]["allowed"]
    assert service.post("/v1/admin/kill", {"killed": True}, **token)[2] == {"killed": True}
    assert service.post("/v1/check", request)[2]["allowed"]
    used = [service.post("/v1/check", {"key": "killed", "limit": "1/hour"})[2]["allowed"] for _ in range(3)]
    assert used == [True, True, True]
    assert service.post("/v1/admin/kill", {"killed": False}, **token)[2] == {"killed": False}
    assert not service.post("/v1/check", request)[2]["allowed"]
    assert service.post("/v1/admin/switch", {"rule": "later", "mode": None}, **token)[2]["mode"] == "shadow"
    assert service.post("/v1/admin/switch", {"rule": "later", "mode": "on"}, **token)[0] == 400


PASSED = """
[[rules]]
name = "later"
match = "/shadow"
by = "ip"
limit = "2/hour"
mode = "shadow"

[[rules]]
name = "kind"
match = "/grace"
by = "ip"
limit = "2/hour"
grace = 3

[[rules]]
name = "half"
match = "/half"
by = "ip"
limit = "2/hour"
enforce_percent = 0
"""


def test_what_passes_over_a_limit_is_counted_as_that(tmp_path):
    """Rules in shadow showed no admissions at all, and what passed by grace counted as refused."""
    with running(tmp_path, PASSED) as service:
        for path, times in (("/shadow", 5), ("/grace", 7), ("/half", 3)):
            for _ in range(times):
                service.post("/v1/check", {"request": {"path": path, "ip": "198.51.100.1"}})
        assert service.worker.keeper.tally.by_rule() == {
            "later": {"allowed": 2, "shadow_refused": 3},
            "kind": {"allowed": 2, "graced": 3, "refused": 2},
            "half": {"allowed": 2, "shadow_refused": 1},
        }
        text = service.call("GET", "/metrics")[2].decode()
        assert 'ratekeeper_decisions_total{rule="later",result="shadow_refused"} 3' in text
        assert 'ratekeeper_decisions_total{rule="later",result="allowed"} 2' in text
        assert 'ratekeeper_utilisation_ratio_count{rule="later"} 5' in text
        service.worker.site.tick()
        assert service.call("GET", "/v1/status")[2]["table"][1]["headroom"] == 0.0


def test_a_thousand_names_keep_nobody_waiting():
    """Metrics of many names let others in between, and the dashboard's history has only those that were busy."""
    with running() as service:
        tally, site = service.worker.keeper.tally, service.worker.site
        for number in range(1000):
            tally.count(f"name {number}", Decision(True, 10, 5))
        turns = 0
        scrape = site.metrics(None).__await__()
        try:
            while True:
                next(scrape)
                turns += 1
        except StopIteration as done:
            lines = done.value.decode().splitlines()
        assert len(lines) > 10_000
        assert abs(turns - len(lines) // AT_ONCE) <= 1

        async def point():
            site.tick()
            tally.count("name 7", Decision(False, 10, 0))
            return site.tick()["rules"]

        assert service.run(point()) == {"name 7": [0, 1, 0]}


def test_a_token_guards_the_api(tmp_path):
    with running(token="secret words") as service:
        check = {"key": "a", "limit": "1/hour"}
        assert service.post("/v1/check", check)[0] == 401
        assert service.post("/v1/check", check, Authorization="Bearer secret word")[0] == 401
        assert service.post("/v1/check", check, Authorization="Bearer secret words")[0] == 200
        assert service.call("GET", "/healthz")[0] == 200


def test_a_reload_that_fails_keeps_the_rules(tmp_path):
    with running(tmp_path, RULES) as service:
        rules = tmp_path / "rules.toml"
        request = {"request": {"method": "POST", "path": "/submit", "ip": "198.51.100.1"}}
        service.post("/v1/check", request)
        rules.write_text("[[rules]]\nname = 1")
        service.loop.call_soon_threadsafe(service.worker.reload)
        assert service.post("/v1/check", request)[2]["allowed"]
        assert not service.post("/v1/check", request)[2]["allowed"]
        rules.write_text(RULES.replace('"2/hour"', '"9/hour"'))
        service.loop.call_soon_threadsafe(service.worker.reload)
        assert service.post("/v1/check", request)[2]["allowed"]


def test_shared_memory_takes_tiers_reloads_and_every_limit_of_redis_clients(tmp_path):
    """A limiter's name is strict there; rules and callers may have several limits under one."""
    if "shm" not in SCHEMES:
        pytest.skip("no shared memory here")
    tiers = '[tiers]\nfrom = "app:tier"\ndefault = "free"\n'
    rules = tiers + '[[rules]]\nname = "r"\nlimit = {{ free = "{}/hour", paid = "9/hour" }}\n'
    with running(tmp_path, rules.format(1), store=f"shm://{tmp_path}/limits", resp=ANY) as service:
        request = {"request": {"ip": "198.51.100.1"}}
        assert [service.post("/v1/check", request)[2]["allowed"] for _ in range(2)] == [True, False]
        (tmp_path / "rules.toml").write_text(rules.format(3))
        service.loop.call_soon_threadsafe(service.worker.reload)
        assert service.post("/v1/check", request)[2]["decisions"][0]["limit"] == 3
        with redis.Redis(port=service.addresses["resp"][1]) as client:
            for burst in (1, 2, 3):
                assert client.execute_command("CL.THROTTLE", f"k{burst}", burst, 10, 60)[:3] == [0, burst + 1, burst]
        for count in (4, 5):
            assert service.post("/v1/check", {"key": "k", "limit": f"{count}/hour", "name": "n"})[2]["limit"] == count


def test_made_up_limits_are_bounded():
    with running(bounds=Bounds(names=3)) as service:
        found = [service.post("/v1/check", {"key": "a", "limit": f"{n}/hour"})[0] for n in range(1, 6)]
        assert found == [200, 200, 200, 400, 400]


def test_made_up_limits_of_redis_clients_are_bounded_too():
    with running(bounds=Bounds(names=3), resp=ANY) as service, redis.Redis(port=service.addresses["resp"][1]) as client:
        for burst in (1, 2, 3, 1, 2, 3):
            assert client.execute_command("CL.THROTTLE", "me", burst, 10, 60)[1] == burst + 1
        with pytest.raises(redis.ResponseError, match="expected at most 3 different ones"):
            client.execute_command("CL.THROTTLE", "me", 4, 10, 60)


@pytest.mark.parametrize(("mode", "status"), [("local", 200), ("allow", 200), ("deny", 503)])
def test_a_dead_store_is_a_mode_and_never_a_429(mode, status):
    with running(store=f"redis://127.0.0.1:1/0?on_store_error={mode}") as service:
        check = {"key": "a", "limit": "4/hour"}
        answers = [service.post("/v1/check?deny_status=429", check)[0] for _ in range(3)]
        assert answers == {"local": [200, 200, 429], "allow": [200] * 3, "deny": [503] * 3}[mode]
        assert service.post("/v1/peek", check)[0] == status
        if status == 200:
            for path, asked in (("check", check), ("peek", check), ("check", {"checks": [check, check]})):
                found = service.post(f"/v1/{path}", asked)[2]
                for decision in found.get("decisions", [found]):
                    assert decision["reason"] == mode
        assert service.call("GET", "/readyz")[2]["store"] != "answers"


def test_described_requests_are_answered_while_the_store_is_dead(tmp_path):
    both = '[[rules]]\nname = "{}"\nby = "ip"\nlimit = "{}/hour"\n'
    for rules in (both.format("a", 4), both.format("a", 4) + both.format("b", 40)):  # one check, and a plan of two
        with running(tmp_path, rules, store="redis://127.0.0.1:1/0") as service:
            answers = [service.post("/v1/check", {"request": {"ip": "198.51.100.1"}}) for _ in range(4)]
            assert [status for status, _, _ in answers] == [200] * 4
            assert [found["allowed"] for _, _, found in answers] == [True, True, False, False]
            told = [decision["reason"] for _, _, found in answers for decision in found["decisions"]]
            assert set(told) == {"local"}


def test_readyz_tells_of_a_redis_that_forgets(redis_server):
    client = redis_server.client()
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with running(store=f"{redis_server.url}/7?deadline=10") as service:
            status, _, found = service.call("GET", "/readyz")
            assert (status, found["store"]) == (200, "answers")
            assert found["warnings"] == ["the store evicts keys: exhausted limits can be forgotten"]
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "0")


def test_the_same_answers_from_redis(redis_server):
    with running(store=f"{redis_server.url}/3?deadline=10") as service:
        answers = [service.post("/v1/check", {"key": "a", "limit": "3/hour", "name": "far"})[2] for _ in range(4)]
        assert [body["allowed"] for body in answers] == [True, True, True, False]
        both = [{"key": "a", "limit": "3/hour", "name": "far"}, {"key": "b", "limit": "3/hour", "name": "far"}]
        assert not service.post("/v1/check", {"checks": both})[2]["allowed"]
        assert service.post("/v1/peek", both[1])[2]["remaining"] == 3
        taken = service.post("/v1/reserve", {"key": "r", "limit": "10/hour", "cost": 8})[2]
        assert service.post("/v1/settle", {"reservation": taken["reservation"], "actual": 3})[2]["remaining"] == 7
        assert service.call("GET", "/readyz")[2]["store"] == "answers"
        service.post("/v1/reset", {"key": "a", "limit": "3/hour", "name": "far"})
        service.post("/v1/reset", {"key": "r", "limit": "10/hour"})

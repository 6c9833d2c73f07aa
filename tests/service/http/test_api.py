"""The HTTP API: what each call answers, and that it is the library's own answer."""

import pytest
import redis

from ratekeeper.service.options import Bounds
from ratekeeper.stores import SCHEMES
from tests.service.running import ANY, running


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
def test_a_mistake_becomes_a_problem_document(service, body, detail):
    status, fields, found = service.post("/v1/check", body)
    assert (status, fields["content-type"]) == (400, "application/problem+json")
    assert found["detail"] == detail


BAD_COSTS = [0, -1, 1.5, "1", True, None, 10**16, [1], {"a": 1}]


@pytest.mark.parametrize("cost", BAD_COSTS)
def test_a_bad_cost_is_refused_and_takes_nothing(service, cost):
    check = {"key": "costs", "limit": "4/hour"}
    assert service.post("/v1/check", {**check, "cost": cost})[0] == 400
    assert service.post("/v1/peek", check)[2]["remaining"] == 4


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
        service.run(service.worker.reload())
        assert service.post("/v1/check", request)[2]["decisions"][0]["limit"] == 3
        with redis.Redis(port=service.addresses["resp"][1]) as client:
            for burst in (1, 2, 3):
                assert client.execute_command("CL.THROTTLE", f"k{burst}", burst, 10, 60)[:3] == [0, burst + 1, burst]
        for count in (4, 5):
            assert service.post("/v1/check", {"key": "k", "limit": f"{count}/hour", "name": "n"})[2]["limit"] == count


def test_made_up_limits_are_bounded():
    with running(bounds=Bounds(names=3)) as service:
        found = [service.post("/v1/check", {"key": "a", "limit": f"{n}/hour"})[0] for n in range(1, 6)]
        assert found == [200, 200, 200, 507, 507]


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
            reasons = [decision["reason"] for _, _, found in answers for decision in found["decisions"]]
            assert set(reasons) == {"local"}


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

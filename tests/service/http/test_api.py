"""The HTTP API: what each call answers, and that it is the library's own answer."""

import pytest
import redis

from ratekeeper import StoreUnavailable
from ratekeeper.service.options import Bounds
from ratekeeper.stores import SCHEMES
from ratekeeper.testing import FakeClock, frozen
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


LEASE = {"key": "l", "limit": "1 concurrent for 10 minutes"}


@pytest.mark.parametrize("scheme", ["memory", "shm", "redis"])
def test_a_lease_is_renewed_until_it_is_settled(scheme, tmp_path, request):
    """A caller could only reserve for the limit's whole time, which a caller that died kept its place for."""
    if scheme not in SCHEMES:
        pytest.skip(f"no {scheme} here")
    urls = {"memory": "memory://", "shm": f"shm://{tmp_path}/leases"}
    url = urls.get(scheme) or f"{request.getfixturevalue('redis_server').url}/4?deadline=10"
    with running(store=url) as service:
        service.post("/v1/reset", LEASE)
        first = service.post("/v1/reserve", {**LEASE, "lasts": 15})[2]
        assert first["allowed"]
        assert 0 < service.post("/v1/peek", LEASE)[2]["reset_after"] <= 15
        assert "reservation" not in service.post("/v1/reserve", LEASE)[2]
        second = service.post("/v1/renew", {"reservation": first["reservation"]})[2]
        assert second["allowed"]
        assert second["remaining"] == 0
        third = service.post("/v1/renew", {"reservation": first["reservation"]})[2]  # all of them are valid
        assert service.post("/v1/settle", {"reservation": second["reservation"], "actual": 0})[2]["remaining"] == 1
        for each in (first, second, third):
            assert service.post("/v1/settle", {"reservation": each["reservation"], "actual": 0})[0] == 409
            status, _, body = service.post("/v1/renew", {"reservation": each["reservation"]})
            assert status == 409
            assert body["detail"] == "reservation: expected to be renewed before it is settled, but it was settled."
        assert service.post("/v1/peek", LEASE)[2]["remaining"] == 1  # a renewal that came late takes nothing


def test_a_lease_that_nobody_renews_ends_and_others_have_its_place():
    clock = FakeClock()
    with frozen(clock), running() as service:
        died = service.post("/v1/reserve", {**LEASE, "lasts": 15})[2]["reservation"]
        clock.advance(10)
        renewed = service.post("/v1/renew", {"reservation": died})[2]
        clock.advance(14)
        assert service.post("/v1/peek", LEASE)[2]["remaining"] == 0
        clock.advance(1)
        taken = service.post("/v1/reserve", LEASE)[2]
        assert taken["allowed"]
        late = service.post("/v1/renew?deny_status=429", {"reservation": renewed["reservation"]})
        assert (late[0], late[2]["allowed"]) == (429, False)
        assert "reservation" not in late[2]
        clock.advance(599)
        assert service.post("/v1/peek", LEASE)[2]["remaining"] == 0  # without "lasts": the limit's time


def test_a_renewal_says_what_is_wrong(service):
    rate = service.post("/v1/reserve", {"key": "rate", "limit": "10/hour"})[2]["reservation"]
    for path, body, detail in [
        ("renew", {"reservation": rate}, "reservation: expected a lease of a concurrency limit, got one of 10/hour."),
        ("renew", {"reservation": "x"}, "reservation: expected one that this service gave out, got something else."),
        ("renew", {"token": rate}, "'token': expected one of reservation."),
        ("reserve", {**LEASE, "lasts": 601}, "lasts: expected seconds from 1 to 600, the limit's time, got 601."),
        ("reserve", {**LEASE, "lasts": True}, "lasts: expected seconds from 1 to 600, the limit's time, got True."),
        ("reserve", {**LEASE, "lasts": 0.5}, "lasts: expected seconds from 1 to 600, the limit's time, got 0.5."),
        (
            "reserve",
            {"key": "rate", "limit": "10/hour", "lasts": 5},
            "lasts: expected a concurrency limit, because only leases end. Leave it out.",
        ),
    ]:
        status, _, answer = service.post(f"/v1/{path}", body)
        assert (status, answer["detail"]) == (400, detail)


def test_a_renewal_that_the_store_cannot_answer_is_tried_again(redis_server):
    with running(store=f"{redis_server.url}/4?deadline=10&on_store_error=deny") as service:
        service.post("/v1/reset", LEASE)
        token = service.post("/v1/reserve", {**LEASE, "lasts": 600})[2]["reservation"]
        store = service.worker.decider.policy.async_store

        async def away(plan):
            raise StoreUnavailable("redis", "is away", charged=None)

        store.check = away
        assert service.post("/v1/renew", {"reservation": token})[0] == 503
        del store.check
        assert service.post("/v1/renew", {"reservation": token})[2]["allowed"]  # it was not withdrawn
        assert service.post("/v1/settle", {"reservation": token, "actual": 0})[2]["remaining"] == 1


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

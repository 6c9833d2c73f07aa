"""Names and routes that would hide every metric and the dashboard."""

import json

import pytest
import redis

from tests.service.running import ANY, running

RULES = '[[rules]]\nname = "per-ip"\nby = "ip"\nlimit = "1000000/day"\n'
HALF = "\ud800"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("rules"), RULES, resp=ANY) as found:
        yield found


def pages_work(service):
    for path in ("/metrics", "/v1/status", "/"):
        status, _, body = service.call("GET", path)
        assert status == 200, path
        assert len(str(body)) < 2_000_000
    service.worker.routes.dashboard.tick()


BODIES = [
    {"key": "k", "limit": "3/day", "name": HALF},
    {"key": HALF, "limit": "3/day"},
    {"key": ["k", HALF], "limit": "3/day"},
    {"request": {"route": f"/x{HALF}"}},
    {"request": {"route": "/x\ny"}},
    {"request": {"facts": {HALF: "x"}}},
    {"request": {"facts": {"user": HALF}}},
    {"request": {"path": HALF}},
    {"request": {"headers": {"x": HALF}}},
    {"key": "k", "limit": "3/day", "name": "a\nb"},
    {"request": {"route": "r" * 301}},
    {"request": {"method": "M" * 41}},
]


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_text_that_no_page_can_show_is_refused_at_the_door(service, body):
    assert service.post("/v1/check", json.dumps(body))[0] == 400
    pages_work(service)


def test_a_whole_pair_is_text(service):
    assert service.post("/v1/check", '{"key": "\\ud83d\\ude00", "limit": "3/day"}')[0] == 200
    assert service.post("/v1/check", '{"key": "\\\\ud800", "limit": "3/day"}')[0] == 200  # a backslash, not an escape


def test_redis_clients_meet_the_same_door(service):
    with redis.Redis(port=service.addresses["resp"][1], socket_timeout=60) as client:
        for name in (b"\xed\xa0\x80", b"a\nb", b"x" * 201):
            with pytest.raises(redis.ResponseError, match=r"(?i)name: expected"):
                client.execute_command("RK.CHECK", "k", "3/day", "NAME", name)
    pages_work(service)


@pytest.mark.full  # thousands of requests
def test_routes_are_bounded_in_number(service):
    """Each route was a label of its own: a scrape of 375 MB."""
    for number in range(1500):
        assert service.post("/v1/check", {"request": {"route": f"/{number}" + "x" * 250}})[0] == 200
    counters = service.worker.decider.counters
    assert len({endpoint for endpoint, _ in counters.requests}) <= 1025
    assert max(len(endpoint) for endpoint, _ in counters.requests) <= 200
    page = service.call("GET", "/metrics")[2]
    assert b'endpoint="other"' in page
    assert len(page) < 1_000_000


def test_a_bad_row_of_an_earlier_version_does_not_hide_the_others(tmp_path):
    """With --state, the row came back at every start."""
    state = tmp_path / "state"
    state.mkdir()
    with running(tmp_path, RULES, state=state) as service:
        service.post("/v1/check", {"request": {"path": "/a"}})
        service.worker.worker_counters.write()
        content = json.loads((state / "worker-0.json").read_text())
    content["requests"].append([f"/bad{HALF}", "allowed", 7])
    content["requests"] += [[f"/{number}" * 100, "allowed", 1] for number in range(2000)]
    content["rules"][f"bad{HALF}"] = content["rules"]["per-ip"]
    (state / "worker-0.json").write_text(json.dumps(content))
    with running(tmp_path, RULES, state=state) as service:
        pages_work(service)
        page = service.call("GET", "/metrics")[2].decode()
        assert 'ratekeeper_requests_total{endpoint="/bad\\\\ud800",result="allowed"} 7' in page
        assert len(service.worker.decider.counters.requests) <= 1026

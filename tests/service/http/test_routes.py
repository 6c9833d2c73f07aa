"""Which paths are served, and what needs a token."""

import json
from importlib.resources import files

from ratekeeper import Decision
from ratekeeper.service.http.routes import LINES_PER_TURN
from tests.service.http.conftest import RULES
from tests.service.running import running


def test_other_methods_and_paths_are_rejected(service):
    assert service.call("GET", "/v1/check")[0] == 405
    assert service.call("GET", "/nowhere")[0] == 404


def test_the_openapi_document_names_the_paths_that_are_served(service):
    document = service.call("GET", "/openapi.json")[2]
    assert document == json.loads(files("ratekeeper.service.http").joinpath("openapi.json").read_text())
    assert set(document["paths"]) == set(service.worker.routes.paths) - {"/"}


def test_overrides_need_the_token_and_change_the_rules(service):
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


def test_a_thousand_names_keep_nobody_waiting():
    """Metrics of many names let others in between, and the dashboard's history has only those that were busy."""
    with running() as service:
        counters, routes = service.worker.decider.counters, service.worker.routes
        for number in range(1000):
            counters.count(f"name {number}", Decision(True, 10, 5))
        turns = 0
        scrape = routes.metrics(None).__await__()
        try:
            while True:
                next(scrape)
                turns += 1
        except StopIteration as done:
            lines = done.value.decode().splitlines()
        assert len(lines) > 10_000
        assert abs(turns - len(lines) // LINES_PER_TURN) <= 1

        async def point():
            routes.dashboard.tick()
            counters.count("name 7", Decision(False, 10, 0))
            return routes.dashboard.tick()["rules"]

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

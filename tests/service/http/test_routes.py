"""Which paths are served, and what needs a token."""

import json
from importlib.resources import files

from ratekeeper import Decision
from ratekeeper.service.http import dashboard
from ratekeeper.service.http.routes import LINES_PER_TURN
from tests.service.running import running


def test_other_methods_and_paths_are_rejected(service):
    assert service.call("GET", "/v1/check")[0] == 405
    assert service.call("GET", "/nowhere")[0] == 404


def test_the_openapi_document_names_the_paths_that_are_served(service):
    document = service.call("GET", "/openapi.json")[2]
    assert document == json.loads(files("ratekeeper.service.http").joinpath("openapi.json").read_text())
    documented = {path.removesuffix("/{form}") for path in document["paths"]}
    assert documented == set(service.worker.routes.paths) - {"/"}


def test_a_thousand_names_keep_nobody_waiting():
    """Metrics of many names let others in between, and the dashboard's history has only those that were busy."""
    with running() as service:
        counters, routes = service.worker.decider.counters, service.worker.routes
        for number in range(1000):
            counters.count(f"name {number}", Decision(True, 10, 5))
        turns = 0
        scrape = routes.metrics_page().__await__()
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


def test_the_figures_of_the_dashboard_are_made_when_somebody_looks(tmp_path, monkeypatch):
    """They were made once a second: with 3,000 rules, requests waited for 15 ms each time."""
    described = []
    monkeypatch.setattr(dashboard, "described", lambda rule: described.append(rule) or {})

    async def look(board):
        board.tick()
        assert described == []
        first = board.figures()
        assert len(described) == len(first["table"]) == 1
        assert board.figures() is first  # nothing has changed since
        board.tick()
        assert len(described) == 1
        assert board.figures() is not first

    with running(tmp_path, '[[rules]]\nname = "r"\nlimit = "1/hour"\n') as service:
        service.run(look(service.worker.routes.dashboard))


def test_a_token_guards_the_api(tmp_path):
    with running(token="secret words") as service:
        check = {"key": "a", "limit": "1/hour"}
        assert service.post("/v1/check", check)[0] == 401
        assert service.post("/v1/check", check, Authorization="Bearer secret word")[0] == 401
        assert service.post("/v1/check", check, Authorization="Bearer secret words")[0] == 200
        assert service.call("GET", "/healthz")[0] == 200


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

"""Health, metrics and the list of refused clients."""

import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.service.running import ANY, running


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


def test_refused_clients_are_counted_by_digest_on_every_listener():
    with running(resp=ANY) as service:
        for _ in range(3):
            service.post("/v1/check", {"key": ["a", 1], "limit": "1/hour"})
        with redis.Redis(port=service.addresses["resp"][1]) as client:
            for _ in range(5):
                client.execute_command("CL.THROTTLE", "me", 0, 1, 3600)
        decider = service.worker.decider
        for listener in service.worker.listeners:  # as once a second
            service.loop.call_soon_threadsafe(listener.timer.cancel)
            service.loop.call_soon_threadsafe(listener.sweep)
        service.call("GET", "/healthz")
        assert sorted(count for _, count in decider.counters.most_refused()) == [2, 4]
        names = "".join(name for name, _ in decider.counters.most_refused())
        assert "me" not in names
        assert set(names) <= set("0123456789abcdef")


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
        assert service.worker.decider.counters.by_rule() == {
            "later": {"allowed": 2, "shadow_refused": 3},
            "kind": {"allowed": 2, "graced": 3, "refused": 2},
            "half": {"allowed": 2, "shadow_refused": 1},
        }
        text = service.call("GET", "/metrics")[2].decode()
        assert 'ratekeeper_decisions_total{rule="later",result="shadow_refused"} 3' in text
        assert 'ratekeeper_decisions_total{rule="later",result="allowed"} 2' in text
        assert 'ratekeeper_utilisation_ratio_count{rule="later"} 5' in text
        service.worker.routes.dashboard.tick()
        assert service.call("GET", "/v1/status")[2]["table"][1]["headroom"] == 0.0

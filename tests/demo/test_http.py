"""The demonstration of a rules file: a refusal, its headers and a reload."""

from ratekeeper.demo.http import http_demo


def test_the_http_demo_shows_a_refusal_its_headers_and_a_reload() -> None:
    lines = list(http_demo())
    statuses = [line.split()[2] for line in lines if line.startswith("  GET")]
    assert statuses == ["200", "200", "200", "429", "200", "429", "200", "200", "429"]
    assert 'GET /  429  x-ratelimit-remaining: 0  ratelimit: "api";r=0;t=20  retry-after: 20' in lines[4]
    assert "reloaded while running" in lines[8]

"""From a request to its limits."""

import pytest

from ratekeeper import Limit
from ratekeeper.outbound.limits import NO_LIMIT, LimitRoutes, PacedPlan, paced_limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("50/second", "50/second burst 7 leaky_bucket"),
        ("1/minute", "1/minute burst 2 leaky_bucket"),
        ("50/second burst 3", "50/second burst 3"),
        ("50/second gcra", "50/second"),
        ("unlimited", "unlimited"),
        (
            ["10/second", "1000/hour"],
            "10/second burst 2 leaky_bucket, 1000 per 3661016950 microseconds sliding_window slices 60 debt 1000",
        ),
    ],
)
def test_a_limit_that_names_no_algorithm_is_spaced_evenly(text, limit):
    assert str(paced_limit(text)) == limit
    assert paced_limit(paced_limit(text)) == paced_limit(text)


def test_the_plans_of_a_limit_for_all_are_cached_and_bounded(monkeypatch):
    monkeypatch.setattr("ratekeeper.outbound.limits.MOST_PLANS", 2)
    routes = LimitRoutes("10/second", "outbound")
    plan = routes.plan(None, "a", "a", "/")
    assert routes.plan(None, "a", "a", "/") is plan
    assert [check.key for check in plan.checks] == ["a"]
    for key in ("b", "c", b"c"):
        assert [check.key for check in routes.plan(None, key, "a", "/").checks] == [key]
        assert len(routes.plans) <= 2


def test_a_function_may_return_a_text_a_limit_a_list_or_none(monkeypatch):
    monkeypatch.setattr("ratekeeper.outbound.limits.MOST_PLANS", 1)
    routes = LimitRoutes(lambda request: request, "outbound")
    for limits in ("10/second", "20/second", Limit("5/second"), ["10/second", "1000/hour"]):
        (check,) = routes.plan(limits, "k", "h", "/").checks
        assert check.limit == paced_limit(limits)
    assert list(routes.chosen) == ["10/second"]
    assert routes.plan(None, "k", "h", "/") is NO_LIMIT


def test_a_route_matches_whole_segments_of_a_path():
    routes = LimitRoutes({"h": "10/second", "h/a": "1/second", "h/a/b/": "unlimited"}, "outbound")
    assert [len(routes.plan(None, "k", "h", path).checks) for path in ("/", "/a", "/ab", "/a/c", "/a/b/c")] == [
        1, 2, 1, 2, 3
    ]  # fmt: skip
    assert routes.plan(None, "k", "other", "/a") is NO_LIMIT


@pytest.mark.parametrize(
    ("limits", "micros"),
    [
        ("50/second", 120_000),  # seven places: the last waits for six intervals
        ("1/minute", 60_000_000),
        ("50/second gcra", 0),
        (["10/second", "1000/hour"], 100_000),
    ],
)
def test_the_longest_delay_of_an_admitted_call(limits, micros):
    (check,) = LimitRoutes(limits, "outbound").plan(None, "k", "h", "/").checks
    assert PacedPlan((check,)).longest_delay == micros

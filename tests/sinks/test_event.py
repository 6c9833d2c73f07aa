"""One event for each verdict; what sinks make of it, in bounded labels and without names."""

import pickle
from dataclasses import replace

import pytest

from ratekeeper import Policy, Request
from ratekeeper.sinks.event import Event
from tests.sinks.samples import HERE, policy, visit


def test_one_event_a_verdict():
    events = []
    own = policy(events.append)
    visit(own, "/search/1", "/search/2", "/search/3", "/search/4", "/admin", "/x")
    assert [event.result for event in events] == ["allowed", "allowed", "allowed", "refused", "forbidden", "refused"]
    assert [event.endpoint for event in events] == ["/search/{id}"] * 4 + ["/admin", "/**"]
    assert [event.graced for event in events] == [(), (), ("search",), (), (), ()]
    assert [event.shadow for event in events] == [(), ("dark",), ("dark",), (), (), ()]
    assert [event.rule for event in events][2:] == ["search", "per-ip", "admin", "per-ip"]
    limit = events[0].limits[1]
    assert (limit.rule, limit.algorithm, limit.remaining, limit.capacity) == ("search", "sliding_log", 1, 2)
    assert limit.headroom == 0.5
    assert len({event.client for event in events}) == 1
    assert all(HERE not in repr(event) for event in events)


def test_clients_are_told_apart_and_not_named():
    events = []
    own = policy(events.append, secret="pepper")
    visit(own, "/")
    visit(own, "/", peer="203.0.113.10")
    again = []
    visit(policy(again.append, secret="pepper"), "/")
    other = []
    visit(policy(other.append, secret="salt"), "/")
    first, second = [event.client for event in events]
    assert first != second
    assert again[0].client == first  # the same on every host that has the secret
    assert other[0].client != first


def test_the_endpoint_is_a_template_and_the_method_is_known():
    events = []
    own = policy(events.append)
    own.check(Request("BREW\n", "/secret/token", HERE, route="/secret/{key}"))
    assert (events[0].endpoint, events[0].method) == ("/secret/{key}", "other")


def test_an_event_can_be_copied_compared_and_sent_to_another_process():
    events = []
    visit(policy(events.append), "/search/1", "/search/2", "/search/3", "/search/4", "/admin", "/x")
    for event in events:
        copy = pickle.loads(pickle.dumps(event))
        assert type(copy) is Event
        assert copy == event
        assert event == copy
        assert copy.outcomes() == event.outcomes()
        assert replace(event, method="PUT") == replace(copy, method="PUT")
        for name in ("result", "client", "seconds", "other"):
            with pytest.raises(AttributeError):
                setattr(event, name, 1)


def test_an_event_stays_as_it_was_when_something_is_given_back():
    events = []
    own = Policy.parse(
        {"rules": [{"name": "r", "limit": "3/minute", "count_when": "status >= 400"}]}, sinks=[events.append]
    )
    verdict = own.check(Request())
    copy = pickle.loads(pickle.dumps(events[0]))
    own.settle(verdict, 200)
    assert verdict.remaining == 3
    assert events[0] == copy
    assert events[0].limits[0].remaining == 2

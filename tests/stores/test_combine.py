"""Threads that speak for one another: nobody leads for longer than its own deadline allows."""

import threading

from ratekeeper.stores import combine
from ratekeeper.stores.combine import TURNS, Combiner


class Asked:
    """A request as far as a combiner knows it."""


def lead_with_others(monkeypatch, seconds_each):
    """How many batches one leader delivers while others keep coming, each taking so long."""
    now = [1000.0]
    monkeypatch.setattr(combine, "monotonic", lambda: now[0])
    leader = threading.get_ident()
    batches, others = [], []

    def deliver(requests, since):
        batches.append(threading.get_ident())
        now[0] += seconds_each
        if len(others) < 2 * TURNS and threading.get_ident() == leader:  # another caller comes while this one waits
            before = len(combiner.pending)
            others.append(threading.Thread(target=combiner.ask, args=(Asked(), 50)))
            others[-1].start()
            while len(combiner.pending) == before:
                pass
        for request in requests:
            request.future.set_result("answer")

    combiner = Combiner(deliver, "here")
    assert combiner.ask(Asked(), 50) == "answer"
    for thread in others:
        thread.join()
    return batches.count(leader)


def test_a_leader_speaks_for_others_a_few_times(monkeypatch):
    assert lead_with_others(monkeypatch, 0.001) == TURNS


def test_a_leader_that_waited_long_hands_over(monkeypatch):
    assert lead_with_others(monkeypatch, 10.0) == 1

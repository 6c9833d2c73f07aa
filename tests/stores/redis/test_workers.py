"""Threads next to the caller's: each call runs at once, and threads are used again."""

import threading

from ratekeeper.stores.redis import workers as module
from ratekeeper.stores.redis.workers import Workers

LONG = 60.0


def test_calls_run_side_by_side():
    workers, meeting = Workers("test"), threading.Barrier(6)
    for _ in range(5):
        workers.start(lambda: meeting.wait(LONG))  # nobody passes before all are there
    meeting.wait(LONG)


def test_a_thread_is_used_again_and_ends_when_it_is_idle(monkeypatch):
    workers, names, rests = Workers("test"), [], threading.Event()

    def call():
        names.append(threading.current_thread().ident)
        rests.set()

    for _ in range(5):
        rests.clear()
        workers.start(call)
        assert rests.wait(LONG)
        while not workers.idle:  # it has told, but not yet returned
            pass
    assert len(set(names)) == 1
    (thread,) = [each for each in threading.enumerate() if each.ident == names[0]]
    assert thread.daemon
    monkeypatch.setattr(module, "IDLE_FOR", 0.001)
    rests.clear()
    workers.start(call)  # it reads the new patience when it is done
    thread.join(LONG)
    assert workers.idle == 0

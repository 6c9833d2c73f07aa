"""The recipes for task queues, on the queues themselves; arq's is in tests/real."""

from contextlib import suppress
from heapq import heappop, heappush

import pytest

from examples.workers import celery_limited, rq_limited
from ratekeeper import Limiter
from ratekeeper.testing import FakeClock


def test_celery():
    celery = pytest.importorskip("celery")
    pytest.importorskip("celery.exceptions")  # celery itself loads it late
    clock = FakeClock()
    limiter = Limiter("2/minute", clock=clock)
    waits, done = [], []
    app = celery.Celery("test", broker="memory://", backend="cache+memory://")
    app.conf.task_always_eager = True

    @app.task(bind=True, max_retries=None)
    @celery_limited(limiter, key=lambda address: address)
    def send(self, address):
        done.append((address, clock.now))

    def retry(countdown):
        waits.append(countdown)
        clock.advance(countdown)  # the queue's own timer
        send.run("a")
        raise celery.exceptions.Ignore

    send.retry = retry
    for _ in range(3):
        send.apply(("a",))
    assert waits == [30.0]
    assert done == [("a", 0.0), ("a", 0.0), ("a", 30.0)]


def test_tasks_that_wait_come_back_one_after_the_other():
    """Sixty tasks at once: each is put back about once, not once for every task before it."""
    exceptions = pytest.importorskip("celery.exceptions")
    clock = FakeClock()
    limiter = Limiter("10/second burst 1", clock=clock)
    due, done = [(0.0, number) for number in range(60)], []

    class Task:
        def retry(self, countdown):
            heappush(due, (clock.now + countdown, len(done) + len(due) + 1000))
            retries.append(countdown)
            return exceptions.Retry()

    retries = []

    @celery_limited(limiter, key=lambda: "all")
    def send(self):
        done.append(clock.now)

    while due:
        at, _ = heappop(due)
        clock.advance(max(0.0, at - clock.now))
        with suppress(exceptions.Retry):
            send(Task())
    assert len(done) == 60
    assert done[-1] == pytest.approx(5.9, abs=0.3)  # no turn is left unused
    assert 59 <= len(retries) <= 90


limited = Limiter("1/hour")
ran: list[str] = []


@rq_limited(limited, key=lambda name: name)
def job(name):
    ran.append(name)


@pytest.mark.full  # it starts workers
def test_rq(redis_server):
    pytest.importorskip("rq")
    from rq import Queue, SimpleWorker
    from rq.registry import ScheduledJobRegistry

    ran.clear()
    limited.reset("a")
    connection = redis_server.client()
    queue = Queue("ratekeeper-test", connection=connection)
    for _ in range(2):
        queue.enqueue(job, "a")
    SimpleWorker([queue], connection=connection).work(burst=True)
    scheduled = ScheduledJobRegistry(queue=queue)
    assert ran == ["a"]
    assert len(scheduled) == 1
    (waiting,) = scheduled.get_job_ids()
    at = scheduled.get_scheduled_time(waiting).timestamp()
    now = float(connection.time()[0])
    assert now + 3500 < at <= now + 3602
    queue.delete(delete_jobs=True)

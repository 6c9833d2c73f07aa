"""The recipes for task queues, on the queues themselves; arq's is in tests/real."""

import pytest

from examples.workers import celery_limited, rq_limited
from ratekeeper import Limiter
from ratekeeper.testing import FakeClock


def test_celery():
    celery = pytest.importorskip("celery")
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


limited = Limiter("1/hour")
ran: list[str] = []


@rq_limited(limited, key=lambda name: name)
def job(name):
    ran.append(name)


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

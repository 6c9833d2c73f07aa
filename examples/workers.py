"""Recipes for task queues: Celery, RQ and arq.

A task that may not run yet is put back until its turn, so that no worker is blocked by it; one that must not run too
many at once holds a lease.  Give the limiter a store that all workers share.

Each task that is put back takes a turn of its own behind those that wait already.  If all came back after the same
wait, one would run and the others would be put back again, a number of times that grows with the square of the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from ratekeeper import AsyncLimiter, Limit, Limiter

MOST_WAITING = 100_000  # tasks that have a turn of their own


def turns_of(limiter: Limiter | AsyncLimiter) -> Limit:
    """The turns of tasks that wait: a queue at the rate of the slowest limit."""
    slowest = min(limiter.limits.parts, key=lambda part: part.count / part.micros)
    return Limit(slowest.count, slowest.micros / 1_000_000, burst=MOST_WAITING, algorithm="leaky_bucket")


def celery_limited(limiter: Limiter, key: Callable[..., str]) -> Callable[[Any], Any]:
    """``@app.task(bind=True, max_retries=None)`` above it: runs when its turn has come, else comes back then."""
    turns = Limiter(turns_of(limiter), store=limiter.store, name=f"{limiter.name[:50]}-turns")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def task(self: Any, *args: Any, **kwargs: Any) -> Any:
            name = key(*args, **kwargs)
            decision = limiter.check(name)
            if not decision:
                raise self.retry(countdown=(decision.retry_after or 0.0) + turns.check(name).delay)
            return function(self, *args, **kwargs)

        return task

    return decorate


def rq_limited(limiter: Limiter, key: Callable[..., str]) -> Callable[[Any], Any]:
    """A job that has no turn yet is enqueued again for the moment it has; needs a worker with a scheduler."""
    turns = Limiter(turns_of(limiter), store=limiter.store, name=f"{limiter.name[:50]}-turns")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def job(*args: Any, **kwargs: Any) -> Any:
            from rq import get_current_job
            from rq.queue import Queue

            name = key(*args, **kwargs)
            decision = limiter.check(name)
            if not decision:
                current = get_current_job()
                wait = (decision.retry_after or 0.0) + turns.check(name).delay
                queue = Queue(current.origin, connection=current.connection)
                queue.enqueue_in(timedelta(seconds=wait), current.func, *args, **kwargs)
                return None
            return function(*args, **kwargs)

        return job

    return decorate


def arq_limited(limiter: AsyncLimiter, key: Callable[..., str]) -> Callable[[Any], Any]:
    """A job that has no turn yet raises arq's own Retry."""
    turns = AsyncLimiter(turns_of(limiter), store=limiter.store, name=f"{limiter.name[:50]}-turns")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def job(context: Any, *args: Any, **kwargs: Any) -> Any:
            from arq import Retry

            name = key(*args, **kwargs)
            decision = await limiter.check(name)
            if not decision:
                turn = await turns.check(name)
                raise Retry(defer=(decision.retry_after or 0.0) + turn.delay)
            return await function(context, *args, **kwargs)

        return job

    return decorate

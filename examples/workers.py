"""Recipes for task queues: Celery, RQ and arq.

A task that may not run yet is put back with the exact wait, so that no worker is blocked by it; one that must not run
too many at once holds a lease.  Give the limiter a store that all workers share.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from ratekeeper import AsyncLimiter, Limiter


def celery_limited(limiter: Limiter, key: Callable[..., str]) -> Callable[[Any], Any]:
    """``@app.task(bind=True, max_retries=None)`` below it: runs when its turn has come, else comes back then."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def task(self: Any, *args: Any, **kwargs: Any) -> Any:
            decision = limiter.check(key(*args, **kwargs))
            if not decision:
                raise self.retry(countdown=decision.retry_after)
            return function(self, *args, **kwargs)

        return task

    return decorate


def rq_limited(limiter: Limiter, key: Callable[..., str]) -> Callable[[Any], Any]:
    """A job that has no turn yet is enqueued again for the moment it has; needs a worker with a scheduler."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def job(*args: Any, **kwargs: Any) -> Any:
            from rq import get_current_job
            from rq.queue import Queue

            decision = limiter.check(key(*args, **kwargs))
            if not decision:
                current = get_current_job()
                queue = Queue(current.origin, connection=current.connection)
                queue.enqueue_in(timedelta(seconds=decision.retry_after or 0.0), current.func, *args, **kwargs)
                return None
            return function(*args, **kwargs)

        return job

    return decorate


def arq_limited(limiter: AsyncLimiter, key: Callable[..., str]) -> Callable[[Any], Any]:
    """A job that has no turn yet raises arq's own Retry."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def job(context: Any, *args: Any, **kwargs: Any) -> Any:
            from arq import Retry

            decision = await limiter.check(key(*args, **kwargs))
            if not decision:
                raise Retry(defer=decision.retry_after)
            return await function(context, *args, **kwargs)

        return job

    return decorate

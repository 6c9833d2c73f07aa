"""``@limiter.limit``: a function, sync or async, whose calls are checked by a limiter first."""

from __future__ import annotations

from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, TypeVar

from ratekeeper.check import to_cost
from ratekeeper.errors import InvalidInput, LimitExceeded, shown
from ratekeeper.keys import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.limiter import AnyLimiter
    from ratekeeper.units import Seconds

    F = TypeVar("F", bound=Callable[..., Any])


def decorated(limiter: AnyLimiter, function: F, key: object, cost: object, timeout: Seconds | None) -> F:
    """``function`` with a check by ``limiter`` before each call."""
    if not callable(function):
        raise InvalidInput(
            f"limit: expected a function to decorate, got {shown(function)}. Write @limiter.limit(key=...)."
        )
    title = getattr(function, "__qualname__", None)
    if key is None and title is None:
        raise InvalidInput(f"limit: expected a key, as {shown(function)} has no name to count under. Give key=...")
    counted_by = f"{function.__module__}.{title}" if key is None else key
    if not callable(counted_by):
        encode(counted_by)  # type: ignore[arg-type]
    if not callable(cost):
        to_cost(cost)
    is_async, awaits = iscoroutinefunction(function), limiter._is_async
    if awaits and not is_async:
        raise InvalidInput(f"{title}: expected an async function, as AsyncLimiter must be awaited. Use Limiter.")
    if is_async and not awaits and limiter.store.blocking:
        raise InvalidInput(f"{title}: expected AsyncLimiter, as this store would block the event loop.")
    is_leased = limiter.limits.is_leased  # then the lease is held until the call returns
    if is_leased and (isgeneratorfunction(function) or isasyncgenfunction(function)):
        raise InvalidInput(
            f"{title}: expected a function whose call ends when its work does, as '{limiter.limits}' is held "
            "meanwhile, got a generator. Use reserve() inside it."
        )
    ask: Callable[..., Any] = limiter.check if timeout is None else limiter.acquire  # type: ignore[attr-defined]
    if is_leased:
        ask = limiter.reserve  # type: ignore[attr-defined]
    options = {} if timeout is None else {"timeout": timeout}

    def request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The decision or the reservation for one call; of an AsyncLimiter, still to be awaited or entered."""
        call_key = counted_by(*args, **kwargs) if callable(counted_by) else counted_by
        call_cost = cost(*args, **kwargs) if callable(cost) else cost
        return ask(call_key, call_cost, **options)

    if is_async:

        @wraps(function)
        async def async_call(*args: Any, **kwargs: Any) -> Any:
            answer = request(args, kwargs)
            if is_leased and awaits:
                async with answer:
                    return await function(*args, **kwargs)
            if is_leased:
                with answer:
                    return await function(*args, **kwargs)
            decision = await answer if awaits else answer
            if not decision:
                raise LimitExceeded(decision, limiter.name, limiter.limits)
            return await function(*args, **kwargs)

        return async_call  # type: ignore[return-value]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        answer = request(args, kwargs)
        if is_leased:
            with answer:
                return function(*args, **kwargs)
        if not answer:
            raise LimitExceeded(answer, limiter.name, limiter.limits)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]

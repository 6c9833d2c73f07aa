"""``@limiter.limit``: a function, plain or async, that asks a limiter before each call."""

from __future__ import annotations

from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, TypeVar

from ratekeeper.check import whole_cost
from ratekeeper.errors import InvalidInput, LimitExceeded, shown
from ratekeeper.keys import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.limiter import Front
    from ratekeeper.units import Seconds

    F = TypeVar("F", bound=Callable[..., Any])


def decorated(limiter: Front, function: F, key: object, cost: object, timeout: Seconds | None) -> F:
    """``function``, asking ``limiter`` before each call."""
    if not callable(function):
        raise InvalidInput(
            f"limit: expected a function to decorate, got {shown(function)}. Write @limiter.limit(key=...)."
        )
    title = getattr(function, "__qualname__", None)
    if key is None and title is None:
        raise InvalidInput(f"limit: expected a key, as {shown(function)} has no name to count under. Give key=...")
    named = f"{function.__module__}.{title}" if key is None else key
    if not callable(named):
        encode(named)  # type: ignore[arg-type]
    if not callable(cost):
        whole_cost(cost)
    is_async = iscoroutinefunction(function)
    if limiter.asynchronous and not is_async:
        raise InvalidInput(f"{title}: expected an async function, as AsyncLimiter must be awaited. Use Limiter.")
    if is_async and not limiter.asynchronous and limiter.store.blocking:
        raise InvalidInput(f"{title}: expected AsyncLimiter, as this store would block the event loop.")
    holds = limiter.limits.is_leased  # then for as long as the call lasts
    if holds and (isgeneratorfunction(function) or isasyncgenfunction(function)):
        raise InvalidInput(
            f"{title}: expected a function whose call ends when its work does, as '{limiter.limits}' is held "
            "meanwhile, got a generator. Use reserve() inside it."
        )
    ask: Callable[..., Any] = limiter.check if timeout is None else limiter.acquire  # type: ignore[attr-defined]
    if holds:
        ask = limiter.reserve  # type: ignore[attr-defined]
    extra = {} if timeout is None else {"timeout": timeout}

    def request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        who = named(*args, **kwargs) if callable(named) else named
        price = cost(*args, **kwargs) if callable(cost) else cost
        return ask(who, price, **extra)

    if is_async:

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            decision = request(args, kwargs)
            if holds and limiter.asynchronous:
                async with decision:
                    return await function(*args, **kwargs)
            if holds:
                with decision:
                    return await function(*args, **kwargs)
            if limiter.asynchronous:
                decision = await decision
            if not decision:
                raise LimitExceeded(decision, limiter.name)
            return await function(*args, **kwargs)

        return awaited  # type: ignore[return-value]

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        decision = request(args, kwargs)
        if holds:
            with decision:
                return function(*args, **kwargs)
        if not decision:
            raise LimitExceeded(decision, limiter.name)
        return function(*args, **kwargs)

    return called  # type: ignore[return-value]

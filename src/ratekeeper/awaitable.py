"""What async methods return: a coroutine that raises if it is used without ``await``.

``if not limiter.check(key)`` admits everybody when ``check`` returns a plain coroutine, which is always true.  An
``AwaitableCall`` can be awaited, and passed to whatever takes a coroutine, but has no truth value, no comparison and no
attributes.  Like a coroutine, it does nothing before it is awaited and warns if it never is.
"""

from __future__ import annotations

from ratekeeper.errors import NotAwaited
from ratekeeper.native import core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, NoReturn, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

OF_COROUTINES = ("_", "cr_", "gi_", "ag_")  # attributes that Python looks for, such as cr_frame


def refuse_use(name: str, use: str, advice: str = "") -> NoReturn:
    """Raise because ``use`` of what ``name`` returned needs an ``await`` first."""
    raise NotAwaited(name, use, advice)


class PureAwaitableCall:
    """A call to be awaited; used as if it were the result, it raises."""

    __slots__ = ("__weakref__", "_arguments", "_home", "_inner", "_is_started")

    def __init__(self, home: PureAsyncCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._is_started = True  # until it is made: wrong arguments raise here, as for any coroutine
        self._home = home
        self._inner: Any = home.function(*args, **kwargs) if home.is_async else None
        self._arguments = None if home.is_async else (args, kwargs)
        self._is_started = False

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> PureAwaitableCall:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Go on, as coroutines do."""
        if self._inner is not None:
            self._is_started = True
            return self._go_on(self._inner.send, value)
        if self._arguments is None:
            raise RuntimeError(f"cannot reuse already awaited {self._home.name}")
        args, kwargs = self._arguments
        self.close()
        raise StopIteration(self._home.function(*args, **kwargs))

    def throw(self, *error: Any) -> Any:
        """Raise inside the call."""
        if self._inner is not None:
            self._is_started = True
            return self._go_on(self._inner.throw, *error)
        self.close()
        kind, value = (*error, None)[:2]
        raise kind if isinstance(kind, BaseException) or value is None else value

    def close(self) -> None:
        """End the call."""
        inner, self._inner, self._arguments, self._is_started = self._inner, None, None, True
        if inner is not None:
            inner.close()

    def _go_on(self, step: Callable[..., Any], *args: Any) -> Any:
        try:
            return step(*args)
        except BaseException:
            self._inner = None
            raise

    def _refuse(self, use: str) -> NoReturn:
        if not self._is_started:
            self.close()  # this error teaches: a warning would say the same
        raise NotAwaited(self._home.name, use)

    def __bool__(self) -> bool:
        return self._refuse("its truth value")

    def __eq__(self, other: object) -> bool:
        return True if self is other else self._refuse("a comparison")

    def __lt__(self, other: object) -> NoReturn:
        self._refuse("a comparison")

    __gt__ = __le__ = __ge__ = __lt__
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith(OF_COROUTINES):
            raise AttributeError(f"'AwaitableCall' object has no attribute {name!r}")
        self._refuse(f"its attribute {name!r}")

    def __repr__(self) -> str:
        return f"<call of {self._home.name} to be awaited>"

    def __del__(self) -> None:
        if not self._is_started:
            from warnings import warn

            warn(f"{self._home.name} was never awaited", RuntimeWarning, stacklevel=2)
            self.close()


class PureAsyncCall:
    """An async function whose calls must be awaited; or a plain one, if not ``is_async``."""

    def __init__(self, function: Callable[..., Any], name: str, is_async: bool) -> None:
        self.function = function
        self.name = name
        self.is_async = is_async

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return an AwaitableCall of the function with these arguments."""
        return PureAwaitableCall(self, args, kwargs)


AsyncCall: Any = PureAsyncCall
if core is not None:
    core.learn_awaiting(NotAwaited)
    AsyncCall = core.AsyncCall


class AsyncMethod:
    """An async method whose calls must be awaited.  On the class, it is the coroutine function, as mocks expect."""

    def __init__(self, function: Callable[..., Any]) -> None:
        call = AsyncCall(function, function.__qualname__, True).call

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return call(self, *args, **kwargs)

        method.__name__, method.__qualname__ = function.__name__, function.__qualname__
        method.__doc__, method.__module__ = function.__doc__, function.__module__
        method.__wrapped__ = function  # type: ignore[attr-defined]
        self.function = function
        self.method = method
        self.__doc__ = function.__doc__

    if not TYPE_CHECKING:  # unittest.mock and inspect look into the class for functions
        __class__ = property(lambda self: type(self.function))

        def __getattr__(self, name):
            return getattr(self.function, name)

        def __call__(self, *args, **kwargs):
            return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self.function if instance is None else self.method.__get__(instance)


if TYPE_CHECKING:

    def awaited(method: F) -> F:
        """Decorate an async method whose calls must be awaited."""
        return method
else:
    awaited = AsyncMethod

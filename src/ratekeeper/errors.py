"""Every error that ratekeeper raises.

RatekeeperError
├── InvalidInput            also a ValueError and a TypeError: the caller's mistake; nothing was changed
│   ├── InvalidLimit        a limit that is malformed or impossible
│   ├── InvalidKey          a key that is empty, or of a type that names nobody
│   ├── InvalidCost         a cost that is not a whole number of at least 1
│   ├── InvalidStore        a store that is unknown, or does not support an option
│   ├── NotAwaited          also an AttributeError: the result of an async call was used without ``await``
│   └── InvalidRules        a rules file with a mistake; the old rules stay in force
├── StoreUnavailable        the store gave no answer in time; limiters use the fallback of on_store_error instead
├── LimitExceeded           raised by decorators and reservations only: elsewhere a refusal is a value
├── AlreadySettled          a reservation was settled twice
└── Closed                  the limiter was closed

Messages read: where: expected what, got what. What to do.  Facts are attributes too.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit, LimitSet


class RatekeeperError(Exception):
    """Any error of this package."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message and the attributes, so that an error passes from a worker process to its parent."""
        return restored, (type(self), self.args, self.__dict__)


class InvalidInput(RatekeeperError, ValueError, TypeError):
    """The caller's mistake, raised before anything was changed."""


class InvalidLimit(InvalidInput):
    """A limit that is malformed or impossible."""


class InvalidKey(InvalidInput):
    """A key that is empty, or of a type that names nobody: a key is text, an int, a UUID, bytes or a tuple of them."""


class InvalidCost(InvalidInput):
    """A cost that is not a whole number of at least 1."""


class InvalidStore(InvalidInput):
    """A store that is unknown, or does not support an option."""


class NotAwaited(InvalidInput, AttributeError):
    """An async call was used as if it were its result: ``if limiter.check(key)`` without ``await``.

    Without this error, every call would be admitted, as a coroutine is always true.
    """

    def __init__(self, name: str, use: str, advice: str = "") -> None:
        example = advice or f"Write: await ….{name.rpartition('.')[2]}(…)."
        super().__init__(f"{name}: expected the call to be awaited, got {use} without that. {example}")


class InvalidRules(InvalidInput):
    """A rules file with a mistake, at ``place`` in it; rules that were in force stay.

    ``keys`` and ``line`` say where in the file; ``mistakes`` has an error for each mistake.
    """

    def __init__(
        self,
        message: str,
        place: str = "",
        *,
        keys: tuple[str | int, ...] = (),
        line: int | None = None,
        mistakes: tuple[InvalidRules, ...] = (),
    ) -> None:
        super().__init__(message)
        self.place = place
        self.keys = keys
        self.line = line
        self._several = mistakes

    @property
    def mistakes(self) -> tuple[InvalidRules, ...]:
        """An error for each mistake of the file; often this one alone."""
        return self._several or (self,)


class LimitExceeded(RatekeeperError):
    """A call was refused, and there is no way to return a decision: by a decorator or a reservation.

    ``decision`` has the details, ``retry_after`` the seconds to wait, ``name`` the limiter, ``limits`` its limits.
    In a web application, the adapters answer it with 429.
    """

    def __init__(self, decision: Decision, name: str = "", limits: Limit | LimitSet | None = None) -> None:
        self.decision = decision
        self.limits = limits
        self.name = name
        self.retry_after = decision.retry_after
        if decision.retry_after is None:
            advice = f"this cost can never pass a capacity of {decision.limit}. Raise the limit or split the call."
        else:
            advice = f"limit of {decision.limit} reached. Try again in {decision.retry_after:.6g} s."
        super().__init__(f"{name}: {advice}" if name else advice[0].upper() + advice[1:])


class StoreUnavailable(RatekeeperError):
    """The store gave no answer in time, or an error.

    ``charged`` is False if the store certainly took nothing, None if that is unknown, because a reply was lost.
    ``why`` says what happened; ``store`` is the URL without its password.
    """

    def __init__(self, store: str, why: str, charged: bool | None = False) -> None:
        self.store = store
        self.why = why
        self.charged = charged
        super().__init__(f"{store}: {why}")


class AlreadySettled(RatekeeperError, RuntimeError):
    """A reservation was settled twice."""


class Closed(RatekeeperError, RuntimeError):
    """The limiter was closed."""


def restored(cls: type[RatekeeperError], args: tuple[object, ...], attributes: dict[str, object]) -> RatekeeperError:
    """A pickled error, made again without its constructor, whose parameters are not its ``args``."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def shown(value: object, most: int = 60) -> str:
    """``repr(value)``, cut short: a message must stay one readable line."""
    try:
        text = repr(value)
    except ValueError:  # an int of more than 4,300 digits
        text = f"an {type(value).__name__} too long to show"
    return text if len(text) <= most else text[: most - 1] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` Did you mean 'minute'?`` or nothing, ready to be appended to a sentence."""
    from difflib import get_close_matches  # slow to import, and only mistakes need it

    names = list(known)
    matches = [name for name in names if len(word) > 2 and name.startswith(word)] or get_close_matches(word, names, n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""

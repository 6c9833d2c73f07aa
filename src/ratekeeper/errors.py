"""Every error that ratekeeper raises.

RatekeeperError
├── InvalidInput            also a ValueError and a TypeError: the caller's mistake, nothing was changed
│   ├── InvalidLimit        a limit that is not well formed or not possible
│   ├── InvalidKey          an empty key, or one that is not text, bytes or a tuple of them
│   ├── InvalidCost         a cost that is not a whole number of at least 1
│   ├── InvalidStore        a store that is unknown, or cannot do what was asked of it
│   └── InvalidRules        a rules file that cannot be taken; the old rules stay
├── StoreUnavailable        the store gave no answer in time; limiters turn it into what on_store_error says
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


class RatekeeperError(Exception):
    """Any error of this package."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by what it says and knows: a worker process can hand it on, whatever its constructor takes."""
        return again, (type(self), self.args, self.__dict__)


class InvalidInput(RatekeeperError, ValueError, TypeError):
    """The caller's mistake, told at once; nothing was changed."""


class InvalidLimit(InvalidInput):
    """A limit that is not well formed or not possible."""


class InvalidKey(InvalidInput):
    """An empty key, or one that is not text, bytes or a tuple of them."""


class InvalidCost(InvalidInput):
    """A cost that is not a whole number of at least 1."""


class InvalidStore(InvalidInput):
    """A store that is unknown, or cannot do what was asked of it."""


class InvalidRules(InvalidInput):
    """A rules file that cannot be taken.  ``place`` says where in it; rules that were running stay."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class LimitExceeded(RatekeeperError):
    """A call was refused where there is no decision to return.

    ``decision`` says by how much and for how long.
    """

    def __init__(self, decision: Decision, name: str = "") -> None:
        self.decision = decision
        self.name = name
        self.retry_after = decision.retry_after
        if decision.retry_after is None:
            advice = f"this cost can never pass a capacity of {decision.limit}. Raise the limit or split the call."
        else:
            advice = f"limit of {decision.limit} reached. Try again in {decision.retry_after:.6g} s."
        super().__init__(f"{name}: {advice}" if name else advice[0].upper() + advice[1:])


class StoreUnavailable(RatekeeperError):
    """The store gave no answer in time, or one that is no answer.

    ``charged`` is False where the store certainly took nothing, None where nobody can know: a reply was lost.
    ``why`` says what happened, and ``store`` where, without password.
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


def again(kind: type[RatekeeperError], args: tuple[object, ...], facts: dict[str, object]) -> RatekeeperError:
    """An error as it was before it was pickled."""
    made = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(facts)
    return made


def shown(value: object, most: int = 60) -> str:
    """``repr(value)``, cut short: a message must stay one readable line."""
    try:
        text = repr(value)
    except ValueError:  # an int of more than 4,300 digits
        text = f"an {type(value).__name__} too long to show"
    return text if len(text) <= most else text[: most - 1] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` Did you mean 'minute'?`` or nothing, ready to be put behind a sentence."""
    from difflib import get_close_matches  # slow to import, and only mistakes need it

    names = list(known)
    near = [name for name in names if len(word) > 2 and name.startswith(word)] or get_close_matches(word, names, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""

"""Bounds and options of stores, and their validation.  No I/O."""

from __future__ import annotations

from ratekeeper.errors import InvalidStore, did_you_mean, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_KEYS = 1_000_000
MOST_TABLES = 1024
MODES = ("local", "allow", "deny")  # of the fallback of a store
LOCAL_SHARE = 0.5  # of each limit, that the fallback admits in one process: two processes together then keep the limit


# A URL that holds a place and nothing else.  Any other text may hold a password, mistyped in whatever way.
PLAIN_URL = r"([a-z+]{1,16}:?/{1,3})?([A-Za-z][A-Za-z0-9.-]*|\[[0-9a-f:]*\]?)?(:[0-9]{1,5})?(/\w*)?"
SECRET_WORDS = ("@", "%40", "pass", "secret", "auth", "token")
HIDDEN = "a text that is not shown, because it may hold a password"


def shown_url(url: str, schemes: Iterable[str]) -> str:
    """The URL of a store in an error: whole if it is only a place, else as much as is certainly no password."""
    from re import fullmatch  # not above: importing the core must be cheap

    if len(url) <= 100 and fullmatch(PLAIN_URL, url) and not may_hold_password(url):
        return shown(url)
    word = url.partition(":")[0].partition("/")[0]
    if word in schemes or (word and did_you_mean(word, schemes)):
        return f"'{word}...'"
    return HIDDEN


def shown_part(url: str, part: str) -> str:
    """A part of the URL of a store in an error, unless it may belong to a password."""
    return HIDDEN if may_hold_password(url) else shown(part)


def may_hold_password(url: str) -> bool:
    lower = url.lower()
    return any(word in lower for word in SECRET_WORDS)


def advice_on(option: str, options: Iterable[str]) -> str:
    """What to write instead of an unknown option."""
    if option == "lease":
        return " Write prefetch: quota that is taken in advance. A lease is a slot of a concurrency limit."
    return did_you_mean(option, options)


def whole_max_keys(max_keys: object, place: str) -> int:
    if isinstance(max_keys, int) and not isinstance(max_keys, bool) and max_keys >= 1:
        return max_keys
    raise InvalidStore(f"{place}: expected max_keys as a whole number of at least 1, got {shown(max_keys)}.")


def expect_options(
    place: str,
    *,
    on_store_error: object = None,
    deadline: object = None,
    first_deadline: object = None,
    local_share: object = None,
    prefetch: object = None,
) -> None:
    """Raise InvalidStore for an invalid option, even if the store at hand does not need it."""
    wanted, got = "", None
    if not is_duration(deadline):
        wanted, got = "a deadline from 0.001 to 60 seconds", deadline
    elif not is_duration(first_deadline):
        wanted, got = "a first_deadline from 0.001 to 60 seconds", first_deadline
    elif on_store_error not in (None, *MODES):
        wanted, got = "on_store_error to be local, allow or deny", on_store_error
    elif local_share is not None and not (is_number(local_share) and 0 < local_share <= 1):  # type: ignore[operator]
        wanted, got = "local_share above 0 and at most 1", local_share
    elif prefetch not in (None, "auto") and not (prefetch.__class__ is int and prefetch > 1):
        wanted, got = "prefetch to be 'auto' or a whole number above 1", prefetch
    if wanted:
        raise InvalidStore(f"{place}: expected {wanted}, got {shown(got)}.")


def expect_store(store: object) -> None:
    if not hasattr(store, "blocking"):
        raise InvalidStore(f"store: expected a URL such as 'redis://localhost:6379/0' or a store, got {shown(store)}.")


def is_duration(value: object) -> bool:
    return value is None or (is_number(value) and 0.001 <= value <= 60)  # type: ignore[operator]


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

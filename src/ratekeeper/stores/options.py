"""Bounds and options of stores, and their validation.  No I/O."""

from __future__ import annotations

from ratekeeper.errors import InvalidStore, shown

MAX_KEYS = 1_000_000
MOST_TABLES = 1024
MODES = ("local", "allow", "deny")  # of the fallback of a store
LOCAL_SHARE = 0.5  # of each limit, that the fallback admits in one process: two processes together then keep the limit


def whole_max_keys(max_keys: object, place: str) -> int:
    if isinstance(max_keys, int) and not isinstance(max_keys, bool) and max_keys >= 1:
        return max_keys
    raise InvalidStore(f"{place}: expected max_keys as a whole number of at least 1, got {shown(max_keys)}.")


def expect_options(
    place: str,
    *,
    on_store_error: object = None,
    deadline: object = None,
    local_share: object = None,
    lease: object = None,
) -> None:
    """Raise InvalidStore for an invalid option, even if the store at hand does not need it."""
    wanted, got = "", None
    if deadline is not None and not (is_number(deadline) and 0.001 <= deadline <= 60):  # type: ignore[operator]
        wanted, got = "a deadline from 0.001 to 60 seconds", deadline
    elif on_store_error not in (None, *MODES):
        wanted, got = "on_store_error to be local, allow or deny", on_store_error
    elif local_share is not None and not (is_number(local_share) and 0 < local_share <= 1):  # type: ignore[operator]
        wanted, got = "local_share above 0 and at most 1", local_share
    elif lease not in (None, "auto") and not (lease.__class__ is int and lease > 1):
        wanted, got = "lease to be 'auto' or a whole number above 1", lease
    if wanted:
        raise InvalidStore(f"{place}: expected {wanted}, got {shown(got)}.")


def expect_store(store: object) -> None:
    if not hasattr(store, "blocking"):
        raise InvalidStore(f"store: expected a URL such as 'redis://localhost:6379/0' or a store, got {shown(store)}.")


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""Where a state is kept on a backend, and as which bytes.  No I/O.

A record holds the states of all limits that are decided as one for one key.  Its name is ``prefix:space:digest``.  The
digest covers the space, the layout of the state and the caller's key, so user text neither shows nor collides, and a
limit whose states mean something else finds other records.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from struct import Struct, error, pack, unpack

from ratekeeper.errors import InvalidStore, shown
from ratekeeper.keys import wire
from ratekeeper.limit import LimitSet, empty_state
from ratekeeper.stores.redis.refusal_cache import RefusalCache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.limit import Limit, State

VERSION = b"1"  # of the record format: part of every digest, so that a record of another version is never read
SLACK = 1_000_000  # microseconds that a record outlives its state
KEPT_UNDER_GIVEN_TIME = 3_600  # seconds at least: a test's clock may stand still while real time passes
LONGEST_LIFE = 400 * 86_400  # seconds: a key may owe for as long
MOST_LIMITS = 1024
MOST_REMEMBERED = 10_000  # keys of one limit, for the fallback
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
SHOWN = 32  # letters of a space in a record's name: for people; the digest keeps spaces apart
LENGTH = Struct(">I")
INSTANT_BYTES = 8  # of one unit in a log, or one lease's end
LEASE_BYTES = 16
NUMBER, NUMBERS, NESTED = b"n", b"q", b"t"  # the first byte of an encoded state


def encode_state(state: State) -> bytes:
    """A state as bytes: a number of any size, many numbers below 2^64, or a tuple of states."""
    if isinstance(state, int):
        return NUMBER + state.to_bytes(state.bit_length() // 8 + 1, "big", signed=True)
    if all(isinstance(part, int) and 0 <= part < 2**64 for part in state):
        return NUMBERS + pack(f">{len(state)}Q", *state)
    encoded = [encode_state(part) for part in state]
    return NESTED + b"".join([LENGTH.pack(len(part)) + part for part in encoded])


def decode_state(record: bytes) -> State:
    """The state of an encoded one; ValueError if it is none."""
    kind, rest = record[:1], record[1:]
    try:
        if kind == NUMBER and rest:
            return int.from_bytes(rest, "big", signed=True)
        if kind == NUMBERS:
            return unpack(f">{len(rest) // INSTANT_BYTES}Q", rest)
        if kind == NESTED:
            parts, at = [], 0
            while at < len(rest):
                (length,) = LENGTH.unpack_from(rest, at)
                at += LENGTH.size + length
                if at > len(rest):
                    raise ValueError("it ends too early")
                parts.append(decode_state(rest[at - length : at]))
            return tuple(parts)
    except (error, RecursionError) as reason:
        raise ValueError(str(reason)) from None
    raise ValueError(f"it begins with {shown(kind)}")


def read_state(record: bytes, limit: Limit | LimitSet) -> State:
    """The state of ``limit`` in a record; ValueError if it is no state of such a limit."""
    state = decode_state(record)
    if isinstance(limit, LimitSet):
        if not isinstance(state, tuple) or len(state) != len(limit.limits):
            raise ValueError(f"it has no states of {len(limit.limits)} limits")
        parts = zip(state, limit.limits, strict=True)
    else:
        parts = zip((state,), (limit,), strict=True)
    for part, its_limit in parts:
        if not is_state(part, its_limit):
            raise ValueError(f"it has no state of {its_limit.algorithm}")
    return state


def is_state(state: Any, limit: Limit) -> bool:
    """Whether ``state`` has the form of the states of ``limit``."""
    if limit.is_leased:
        if not isinstance(state, tuple) or len(state) != 3 or not all(isinstance(part, tuple) for part in state):
            return False
        ends, ids, notes = state
        pairs = all(isinstance(note, tuple) and len(note) == 2 and are_numbers(note) for note in notes)
        return are_numbers(ends) and are_numbers(ids) and len(ends) == len(ids) and pairs
    if limit.algorithm == "sliding_log":
        return isinstance(state, tuple) and are_numbers(state)
    return isinstance(state, int) and state >= 0


def are_numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, int) for value in values)


def lifetime(state: State, now: int, limit: Limit | LimitSet, least: int) -> int:
    """Whole seconds after which a record may be forgotten, because its state means nothing any more."""
    micros = limit.rule.reset_after(state, now, limit)
    if limit.is_leased:  # withdrawn leases are noted for as long as a lease lasts
        micros = max(micros, limit.recovery)
    return min(LONGEST_LIFE, max(least, -(-(micros + SLACK) // 1_000_000)))


class StoredLimit:
    """One limit, or several decided as one, in one space: how its records are named, and what was last read of them."""

    __slots__ = (
        "digests",
        "empty",
        "fallback",
        "is_single",
        "is_unlimited",
        "limit",
        "names",
        "older",
        "prefix",
        "recent",
        "refusals",
        "seen",
        "space",
    )

    def __init__(self, space: str, limit: Limit | LimitSet, prefix: str, secret: bytes) -> None:
        self.space = space
        self.limit = limit
        self.empty = empty_state(limit)
        self.is_unlimited = limit.parts[0].is_unlimited
        self.prefix = f"{prefix}:{''.join([letter if letter in PLAIN else '_' for letter in space[:SHOWN]])}:"
        self.digests = blake2b(key=secret[:64], digest_size=16, person=b"rk-record" + VERSION)
        for part in (space.encode("utf-8", "surrogatepass"), limit.layout.encode()):
            self.digests.update(LENGTH.pack(len(part)) + part)
        self.names: dict[str | bytes, str] = {}  # by encoded key; text and bytes never are equal
        # What the fallback asks for: see fallback.py.
        self.is_single = True
        self.fallback: Any = None
        self.refusals = RefusalCache(enabled=False)
        self.seen = (0, 0)  # the store's microseconds, and our nanoseconds: when it answered last
        self.recent: dict[str | bytes, State] = {}
        self.older: dict[str | bytes, State] = {}

    def name(self, key: str | bytes) -> str:
        """The name of the record of an encoded key; empty if there is none, as nothing is counted."""
        name = self.names.get(key)
        if name is None:
            if self.is_unlimited:
                return ""
            if len(self.names) >= MOST_REMEMBERED:
                self.names.clear()
            digests = self.digests.copy()
            digests.update(wire(key))
            name = self.names[key] = self.prefix + urlsafe_b64encode(digests.digest())[:22].decode()
        return name

    def remember(self, key: str | bytes, state: State, now: int, nanos: int) -> None:
        """Keep what the store last said of a key, for the fallback; the older half is dropped when there are many."""
        self.recent[key] = state
        self.seen = now, nanos
        if len(self.recent) >= MOST_REMEMBERED:
            self.older, self.recent = self.recent, {}

    def recall(self, key: str | bytes) -> State | None:
        """What the store last said of a key."""
        state = self.recent.get(key)
        return self.older.get(key) if state is None else state


class StoredLimits:
    """The limits of one store, made when they are first used."""

    def __init__(self, store: str, prefix: str, secret: str, longest_record: int | None) -> None:
        self.store = store  # as errors name it
        self.prefix = prefix
        self.secret = secret.encode()
        self.longest_record = longest_record
        self.by_limit: dict[tuple[str, Limit | LimitSet], StoredLimit] = {}
        self.by_identity: dict[tuple[str, int], StoredLimit] = {}

    def layout(self, space: str, limit: Limit | LimitSet) -> StoredLimit:
        """How ``limit`` is kept in ``space``."""
        cached = self.by_identity.get((space, id(limit)))  # hashing a limit takes longer than all the rest
        if cached is not None and cached.limit is limit:
            return cached
        stored = self.by_limit.get((space, limit))
        if stored is None:
            self.expect_room(limit)
            if len(self.by_limit) >= MOST_LIMITS:  # the application makes limits at run time
                self.by_limit.clear()
            stored = self.by_limit[space, limit] = StoredLimit(space, limit, self.prefix, self.secret)
        if stored.limit is limit:  # the limit lives as long as this entry, so that no other object gets its identity
            if len(self.by_identity) >= MOST_LIMITS:
                self.by_identity.clear()
            self.by_identity[space, id(limit)] = stored
        return stored

    def expect_room(self, limit: Limit | LimitSet) -> None:
        """Raise InvalidStore for a log that the backend has no room for."""
        if self.longest_record is None:
            return
        needed = sum(
            [
                part.count * (LEASE_BYTES if part.is_leased else INSTANT_BYTES)
                for part in limit.parts
                if part.is_leased or part.algorithm == "sliding_log"
            ]
        )
        if needed > self.longest_record:
            raise InvalidStore(
                f"store {self.store}: expected a limit whose state fits a record of {self.longest_record:,} bytes, "
                f"got '{limit}', which needs {needed:,}. Use sliding_window, or a lower count."
            )

    def release(self, space: str, limit: Limit | LimitSet) -> None:
        """Forget what this process knows of the states that ``limit`` reads."""
        for place in [place for place in self.by_limit if place[0] == space and place[1].layout == limit.layout]:
            del self.by_limit[place]
        self.by_identity.clear()

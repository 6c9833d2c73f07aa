"""How one limit is kept in one space of a database: under which keys, in which rows, for how long.  No I/O.

Each limit of a check has a row of its own.  Its key is a digest of the space, the layout of the state, the caller's key
and the place of the limit: user text neither shows nor collides, and a limit whose states mean something else finds
other rows.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from time import time_ns

from ratekeeper.algorithms import BUCKETS
from ratekeeper.algorithms.gcra import FRACTION
from ratekeeper.algorithms.sliding_window import packed
from ratekeeper.keys import wire
from ratekeeper.limit import Limit, LimitSet
from ratekeeper.stores.redis.refusal_cache import RefusalCache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ratekeeper.limit import State
    from ratekeeper.stores.fallback import FallbackTable

VERSION = b"1"  # of the states: part of every key's digest, so that a state of another version is never read
SLACK = 1_000_000  # microseconds that a row outlives its state
KEPT_UNDER_GIVEN_TIME = 3_600_000_000  # microseconds: a test's clock may stand still while real time passes
MOST_NAMES = 10_000
MOST_COSTS = 64  # of a layout whose words are cached
NUMBERS = 7  # of a limit, as decide.sql reads them
MARK = 1 << 52  # microseconds: of gcra.sql
LENGTH = Struct(">I")
SIGN, WORD = 1 << 63, 1 << 64  # ids of leases have 64 bits; a bigint has a sign

KINDS = {
    "gcra": "g",
    "token_bucket": "g",  # decides as gcra does
    "leaky_bucket": "g",
    "fixed_window": "f",
    "sliding_window": "w",
    "sliding_log": "l",
    "calendar_window": "c",
    "first_use_window": "u",
    "concurrency": "k",
}


def limit_numbers(limit: Limit, now: int = 0, lease: int = 0, lasts: int = 0) -> tuple[int, ...]:
    """A limit as its twin in SQL reads it; of a concurrency limit also the lease.

    Of a calendar it has the edges around ``now``, the server's time.
    """
    numbers: tuple[int, ...] = limit.micros, limit.count, limit.owes
    if limit.algorithm in BUCKETS:
        unit, full = divmod(limit.unit, limit.drain), divmod(limit.full, limit.drain)
        numbers = limit.drain, *unit, *full, limit.slack, limit.owes
    elif limit.calendar is not None:
        numbers = limit.count, limit.owes, *limit.calendar.around(now)
    elif limit.algorithm == "sliding_window":
        numbers = limit.slices, *numbers
    elif limit.algorithm == "concurrency":
        numbers = limit.micros, limit.count, lease - WORD if lease >= SIGN else lease, lasts
    return *numbers, *(0,) * (NUMBERS - len(numbers))


def bounded_cost(operation: str, limit: Limit, cost: int) -> int:
    """The cost to send: a greater one has the same result, and might not fit the server's words."""
    if operation in ("end_leases", "reset", "states"):
        return min(cost, limit.count)
    if operation == "debit":
        return min(cost, limit.owes)
    if operation != "refund":
        return min(cost, limit.capacity + 1)
    if limit.algorithm in BUCKETS:  # no state owes more
        return min(cost, (1 << 62) // limit.drain, MARK * limit.drain // limit.unit + 1)
    return cost


def read_state(numbers: Sequence[int], limit: Limit) -> State:
    """The canonical state of a row: what the Python rule would have."""
    rule, algorithm = limit.rule, limit.algorithm
    if not numbers:
        return rule.EMPTY
    if algorithm in BUCKETS:
        tat, rest = numbers
        return tat << FRACTION | rest
    if algorithm == "sliding_log":
        return tuple(numbers)
    if algorithm == "sliding_window":
        return packed(numbers[0], list(numbers[1:]))
    if algorithm == "concurrency":
        first = 1 + 2 * numbers[0]
        notes, leases = numbers[1:first], numbers[first:]
        return (
            tuple(leases[::2]),
            tuple([lease % WORD for lease in leases[1::2]]),
            tuple([(until, lease % WORD) for until, lease in zip(notes[::2], notes[1::2], strict=True)]),
        )
    first, used = numbers
    if algorithm == "calendar_window":
        return limit.calendar.index(first) << rule.BITS | used
    return first << rule.BITS | used


class RowLayout:
    """How the states of one limit, or of several decided as one, are kept in one space."""

    __slots__ = (
        "calendars",
        "digests",
        "fallback",
        "gives_time",
        "is_leased",
        "is_single",
        "keeps",
        "kinds",
        "limit",
        "names",
        "nanos",
        "older",
        "parts",
        "recent",
        "refusals",
        "seen",
        "space",
        "subjects",
        "words",
        "words_from",
        "words_until",
    )

    def __init__(
        self,
        space: str,
        limit: Limit | LimitSet,
        secret: bytes = b"",
        gives_time: bool = False,
        refusals: RefusalCache | None = None,
        nanos: Callable[[], int] | None = None,
    ) -> None:
        self.space = space
        self.limit = limit
        self.gives_time = gives_time
        self.nanos = nanos
        self.seen = (0, 0)  # the server's microseconds, and our nanoseconds when we asked: the last time it answered
        self.refusals = RefusalCache(enabled=False) if refusals is None else refusals
        self.parts: tuple[Limit, ...] = () if limit.parts[0].is_unlimited else limit.parts
        self.subjects = self.parts  # empty: the server is not asked
        self.is_leased = limit.is_leased
        self.is_single = bool(self.parts) and not self.is_leased  # the fallback counts it by itself
        self.kinds = [KINDS[part.algorithm] for part in self.parts]
        longer = KEPT_UNDER_GIVEN_TIME if gives_time else 0
        # Twice as long as it recovers: a clock that stepped back may have left a state in the future.
        self.keeps = [b"%d" % (2 * part.recovery + SLACK + longer) for part in self.parts]
        self.calendars = [part.calendar for part in self.parts if part.calendar is not None]
        self.words_from = self.words_until = 0  # the instants from and until which the words hold
        self.words: dict[tuple[str, int], list[tuple[bytes, bytes]]] = {}
        self.digests = blake2b(key=secret[:64], digest_size=16, person=b"ratekeeperpg" + VERSION)
        for part in (space.encode("utf-8", "surrogatepass"), limit.layout.encode()):
            self.digests.update(LENGTH.pack(len(part)) + part)
        self.names: dict[str | bytes, list[str]] = {}
        # What the server last said of each key, for the fallback; the older half is dropped when the newer is full.
        self.recent: dict[str | bytes, State] = {}
        self.older: dict[str | bytes, State] = {}
        self.fallback: FallbackTable | None = None  # where it is counted while the server is away

    def row_names(self, key: str | bytes) -> list[str]:
        """The keys of the rows of an encoded ``key``, in hexadecimal digits."""
        names = self.names.get(key)
        if names is None:
            if len(self.names) >= MOST_NAMES:
                self.names.clear()
            names = []
            for index in range(len(self.parts)):
                digests = self.digests.copy()
                digests.update(LENGTH.pack(index) + wire(key))
                names.append(digests.hexdigest())
            self.names[key] = names
        return names

    def row_words(self, operation: str, cost: int, lease: int = 0, lasts: int = 0) -> list[tuple[bytes, bytes]]:
        """The cost and the numbers of each limit, as words of a statement."""
        if lease:
            return self.spell(operation, cost, lease, lasts)
        if self.calendars:
            now = self.server_time()
            if not self.words_from <= now < self.words_until:
                windows = [calendar.around(now) for calendar in self.calendars]
                self.words_from = max(edges[1] for edges in windows)
                self.words_until = min(edges[2] for edges in windows)
                self.words.clear()
        words = self.words.get((operation, cost))
        if words is None:
            if len(self.words) >= MOST_COSTS:
                self.words.clear()
            words = self.words[operation, cost] = self.spell(operation, cost)
        return words

    def spell(self, operation: str, cost: int, lease: int = 0, lasts: int = 0) -> list[tuple[bytes, bytes]]:
        if operation in ("take", "charge"):  # the same cost for all limits of the check
            cost = min(cost, *[part.capacity for part in self.parts])
        now = self.server_time()
        return [
            (
                b"%d" % bounded_cost(operation, part, cost),
                b",".join([b"%d" % number for number in limit_numbers(part, now, lease, lasts)]),
            )
            for part in self.parts
        ]

    def server_time(self) -> int:
        """The server's microseconds as far as we know: by its last answer, else by our own time of day."""
        if not self.calendars:
            return 0
        if self.nanos is None:
            return time_ns() // 1000
        if self.gives_time:
            return self.nanos() // 1000
        now, asked = self.seen
        return now + (self.nanos() - asked) // 1000 if now else time_ns() // 1000

    def state(self, rows: Sequence[Sequence[int]]) -> State:
        """The canonical state, from the numbers of each row."""
        limit = self.limit
        if not isinstance(limit, LimitSet):
            return read_state(rows[0], limit) if rows else limit.rule.EMPTY
        return tuple([read_state(numbers, part) for numbers, part in zip(rows, self.parts, strict=True)])

    def remember(self, key: str | bytes, state: State, now: int, sent: int) -> None:
        self.recent[key] = state
        self.seen = now, sent
        if len(self.recent) >= MOST_NAMES:
            self.older, self.recent = self.recent, {}

    def recall(self, key: str | bytes) -> Any:
        state = self.recent.get(key)
        return self.older.get(key) if state is None else state

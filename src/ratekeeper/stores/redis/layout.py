"""How one limit is kept in one space of a server: under which keys, in which records, for how long.

Key names are ``prefix:space:{digest}``.  The digest covers the space, the layout of the state and the caller's key, so
user text neither shows, nor collides, nor chooses a slot; a limit whose states mean something else finds other keys.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from functools import partial
from hashlib import blake2b
from itertools import chain
from struct import Struct
from time import time_ns

from ratekeeper.algorithms import BUCKETS
from ratekeeper.algorithms.gcra import FRACTION
from ratekeeper.keys import wire
from ratekeeper.limit import MOST_TICKS, Limit, LimitSet
from ratekeeper.stores.redis.packed_log import LogSummary, PackedLeases, PackedLog
from ratekeeper.stores.redis.refusal_cache import RefusalCache
from ratekeeper.stores.redis.resp import bulk, number
from ratekeeper.stores.redis.script import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ratekeeper.limit import State
    from ratekeeper.stores.fallback import FallbackTable

VERSION = b"3"  # of the record formats: part of every key's digest, so that a record of another version is never read
LONGEST_WHOLE = 64  # instants: a longer log is kept as a ring, which the server changes in place
SLACK = 1_000  # milliseconds that a key outlives its state
MOST_NAMES = 10_000
MOST_COSTS = 64  # of a layout whose words are cached
LOGS = ("sliding_log", "concurrency")  # their states grow and shrink
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
SHOWN = 32  # letters of a space in a key's name: for people; the digest keeps spaces apart

BUCKET_STATE = Struct(">QI")
STAMP = 8  # bytes of the instant at which a record was made, if its first state does not contain it
STAMPED_BUCKET = Struct(">8xQI")
WINDOW_SIZE = 12  # 7 bytes for the instant, 5 for what was used in its window
FIRST_USE = Struct(">7x7s5s")  # after the instant: when the window started, and what was used in it
LOG_LENGTHS = range(0, 7 << 21, 7)  # of more instants than any limit has
LENGTH = Struct(">I")


def packed_number(value: int) -> bytes:
    """A whole number in msgpack."""
    return bytes([value]) if value < 128 else b"\xcf" + value.to_bytes(8, "big")


def packed_limit(limit: Limit, kind: str, cost: int, lease: int = 0, lasts: int = 0, now: int = 0) -> bytes:
    """A limit and the cost to take, as the script reads them; of a concurrency limit also the lease.

    Of a calendar it has the edges around ``now``, the server's time.
    """
    numbers: tuple[int, ...] = limit.micros, limit.count
    if limit.calendar is not None:
        numbers = limit.count, *limit.calendar.around(now)
    if limit.algorithm == "concurrency":
        numbers = limit.micros, limit.count, lasts, lease >> 32, lease & 0xFFFF_FFFF
    if limit.algorithm in BUCKETS:
        (unit, unit_rest), (full, full_rest) = divmod(limit.unit, limit.drain), divmod(limit.full, limit.drain)
        numbers = limit.drain, unit, unit_rest << 26 | full_rest, full, limit.slack  # a drain is at most 2^26
    elif limit.algorithm == "sliding_window":
        numbers = limit.slices, *numbers, limit.owes
    numbers = ord(kind), cost, *numbers, *(0,) * (5 - len(numbers))
    return b"".join([packed_number(each) for each in numbers])


def packed_debit(limit: Limit, kind: str, cost: int, now: int = 0) -> bytes:
    """A limit and the cost to take in full, as the debits of the twins read them."""
    numbers: tuple[int, ...] = limit.micros, limit.count, limit.owes
    if limit.algorithm in BUCKETS:
        unit, unit_rest = divmod(limit.unit, limit.drain)
        ceiling, full_rest = divmod(limit.ceiling, limit.drain)
        numbers = limit.drain, unit, unit_rest << 26 | full_rest, ceiling, limit.owes
    elif limit.calendar is not None:
        numbers = limit.owes, *limit.calendar.around(now)
    elif limit.algorithm in ("fixed_window", "first_use_window"):
        numbers = limit.micros, limit.owes
    elif limit.algorithm == "sliding_window":
        numbers = limit.slices, *numbers
    numbers = ord(kind), min(cost, limit.owes), *numbers, *(0,) * (5 - len(numbers))
    return b"".join([packed_number(each) for each in numbers])


def state_size(limit: Limit) -> int:
    """Bytes of a state.  Not for logs, whose states vary."""
    if limit.algorithm in BUCKETS:
        return BUCKET_STATE.size
    if limit.algorithm == "first_use_window":
        return FIRST_USE.size
    return 7 + 5 * (limit.slices + 1) if limit.algorithm == "sliding_window" else WINDOW_SIZE


def unpack_state(record: bytes, limit: Limit) -> State:
    """The canonical state of a record: what the Python rule would have."""
    rule = limit.rule
    if not record:
        return rule.EMPTY
    if limit.algorithm in BUCKETS:
        tat, rest = BUCKET_STATE.unpack(record)
        return tat << FRACTION | rest
    if limit.algorithm == "fixed_window":
        window = int.from_bytes(record[:7], "big") // limit.micros
        return window << rule.BITS | int.from_bytes(record[7:], "big")
    if limit.algorithm == "calendar_window":
        used = int.from_bytes(record[7:], "big")
        return limit.calendar.index(int.from_bytes(record[:7], "big")) << rule.BITS | used if used else rule.EMPTY
    if limit.algorithm == "first_use_window":
        start, used_in_it = FIRST_USE.unpack(record)
        return int.from_bytes(start, "big") << rule.BITS | int.from_bytes(used_in_it, "big")
    if limit.algorithm == "sliding_window":
        state = int.from_bytes(record[:7], "big") * limit.slices // limit.micros
        for at in range(len(record) - 5, 6, -5):  # the newest counter is first in the record, lowest in the number
            state = state << rule.FIELD | int.from_bytes(record[at : at + 5], "big")
        return state
    if limit.algorithm == "concurrency":
        return PackedLeases(record)
    return PackedLog(record) if len(record) != LogSummary.SIZE else LogSummary(record)


def most_back(limit: Limit, cost: int) -> int:
    """The cost to give back, without more than a bucket can owe: ticks must stay where a double is exact."""
    return min(cost, MOST_TICKS // limit.drain) if limit.algorithm in BUCKETS else cost


def time_to_live(limit: Limit) -> int:
    """Milliseconds after which any state of ``limit`` is EMPTY again, and a little more."""
    return -(-limit.recovery // 1000) + SLACK


class Subject:
    """One key of a check: the limits whose states are in its record, and its words for the script."""

    __slots__ = (
        "cuts",
        "instant",
        "kinds",
        "lengths",
        "parts",
        "ring",
        "server_time",
        "size",
        "stamp",
        "suffix",
        "ttl",
    )
    lengths: Sequence[int]  # in bytes, that a record may have

    def __init__(self, parts: Sequence[Limit], suffix: bytes, longer: int, server_time: Callable[[], int]) -> None:
        self.parts = parts
        self.server_time = server_time
        self.suffix = suffix
        self.ring = parts[0].algorithm == "sliding_log" and parts[0].count > LONGEST_WHOLE
        self.kinds = "r" if self.ring else "".join([KINDS[part.algorithm] for part in parts])
        self.ttl = number(max(longer, *[time_to_live(part) for part in parts]))
        self.stamp = STAMP if parts[0].algorithm in BUCKETS else 0
        self.size, self.lengths, self.cuts = 0, LOG_LENGTHS, []  # 0: it varies
        self.instant = slice(-7, None)  # the bytes of a record that say when it was made
        if parts[0].algorithm not in LOGS:
            self.instant = slice(self.stamp or 7)
            self.size = self.stamp
            for part in parts:
                start, self.size = self.size, self.size + state_size(part)
                self.cuts.append((start, self.size))
            self.lengths = (0, self.size)

    def spell(self, operation: str, cost: int, whole: bool, lease: int = 0, lasts: int = 0) -> bytes:
        """The words of this subject, which follow those of its plan."""
        kinds = self.kinds
        if whole and self.ring:
            kinds = "w"
        if operation in ("refund", "debit"):  # the same function for all three buckets
            kinds = kinds.translate(REFUND_KINDS)
        if operation in ("reset", "states"):
            return bulk(kinds[:1].encode())
        if operation == "debit":
            now = self.server_time()
            return (
                bulk(b"".join([packed_debit(*each, cost, now) for each in zip(self.parts, kinds, strict=True)]))
                + self.ttl
            )
        costs = [most_back(part, cost) if operation == "refund" else cost for part in self.parts]
        now = self.server_time()
        limits = [
            packed_limit(part, kind, cost, lease, lasts, now)
            for part, kind, cost in zip(self.parts, kinds, costs, strict=True)
        ]
        return bulk(b"".join(limits)) + self.ttl

    def spell_charge(self, costs: Sequence[int]) -> bytes:
        """The words of this subject with a cost for each of its limits."""
        now, kinds = self.server_time(), "w" if self.ring else self.kinds
        limits = [
            packed_limit(part, kind, cost, now=now) for part, kind, cost in zip(self.parts, kinds, costs, strict=True)
        ]
        return bulk(b"".join(limits)) + self.ttl

    def states(self, record: bytes) -> list[State]:
        if len(self.parts) == 1:
            return [unpack_state(record[self.stamp :], self.parts[0])]
        return [unpack_state(record[start:end], part) for (start, end), part in zip(self.cuts, self.parts, strict=True)]


REFUND_KINDS = str.maketrans("tl", "gg")


class RecordLayout:
    """How the states of one limit, or of several decided as one, are kept in one space."""

    __slots__ = (
        "byte_names",
        "calendars",
        "digests",
        "fallback",
        "gives_time",
        "is_leased",
        "is_packed",
        "is_single",
        "limit",
        "most",
        "names",
        "nanos",
        "older",
        "once",
        "order",
        "prefix",
        "read_record",
        "recent",
        "record_size",
        "refusals",
        "seen",
        "space",
        "subjects",
        "unpack",
        "words",
        "words_from",
        "words_until",
    )

    def __init__(
        self,
        space: str,
        limit: Limit | LimitSet,
        prefix: bytes = b"rk",
        secret: bytes = b"",
        longer: int = 0,
        refusals: RefusalCache | None = None,
        nanos: Callable[[], int] | None = None,
    ) -> None:
        """``longer`` is how much longer a key is kept by a store that sends its own time, and ``nanos`` its clock."""
        self.nanos = nanos
        self.gives_time = longer > 0
        self.seen = (0, 0)  # the server's microseconds, and our nanoseconds when we asked: the last time it answered
        self.space = space
        self.limit = limit
        self.refusals = RefusalCache(enabled=False) if refusals is None else refusals
        parts: Sequence[Limit] = limit.parts
        # A log changes its length, so each log has a key of its own; the other limits share a record.
        packed = [index for index, part in enumerate(parts) if part.algorithm not in ("unlimited", *LOGS)]
        logs = [index for index, part in enumerate(parts) if part.algorithm in LOGS]
        groups = ([packed] if packed else []) + [[index] for index in logs]
        self.order = [index for group in groups for index in group]
        self.subjects = []
        for group in groups:
            suffix = (
                b"" if group is packed else b".%d" % group[0] + (b"r" if parts[group[0]].count > LONGEST_WHOLE else b"")
            )
            self.subjects.append(Subject([parts[index] for index in group], suffix, longer, self.server_time))
        self.calendars = [part.calendar for part in parts if part.calendar is not None]
        self.words_from = self.words_until = 0  # the instants from and until which the words hold
        self.is_packed = not logs
        self.is_leased = limit.is_leased
        self.is_single = len(self.subjects) == 1 and not self.is_leased  # the words of each lease are its own
        self.most = max(part.capacity for part in parts) + 1  # a greater cost has the same result, so this one is sent
        self.prefix = prefix + b":" + label(space).encode() + b":{"
        self.digests = blake2b(key=secret[:64], digest_size=16, person=b"ratekeeper" + VERSION)
        for part in (space.encode("utf-8", "surrogatepass"), limit.layout.encode()):
            self.digests.update(LENGTH.pack(len(part)) + part)
        # The names of the subjects' keys, as words of a command, by encoded key.  Text and bytes are kept apart: bytes
        # of a caller are not encoded yet, and must not be found.
        self.names: dict[str, bytes] = {}
        self.byte_names: dict[bytes, bytes] = {}
        # What the server last said of each key, for the fallback; the older half is dropped when the newer is full.
        self.recent: dict[str | bytes, State] = {}
        self.older: dict[str | bytes, State] = {}
        self.fallback: FallbackTable | None = None  # where it is counted while the server is away
        self.words: dict[int, bytes] = {}
        # The words of a check of 1; of a calendar empty, as they change with the time.
        self.once = b"" if self.calendars else self.check_words(1)
        # A record of nothing but buckets is read in one step; its size is 0 if other limits are in it.
        buckets = self.is_single and self.is_packed and all(part.algorithm in BUCKETS for part in parts)
        self.unpack = Struct(">Q" + "QI" * len(parts)).unpack
        self.record_size = self.subjects[0].size if buckets else 0
        self.read_record = self.record_reader()

    def name(self, key: str | bytes) -> bytes:
        """The name of the key of the first subject; those of the others begin with it."""
        digests = self.digests.copy()
        digests.update(wire(key))
        return self.prefix + urlsafe_b64encode(digests.digest())[:22] + b"}"

    def keys(self, key: str | bytes) -> bytes:
        """The names of all subjects' keys for an encoded ``key``, as words of a command."""
        names: dict[Any, bytes] = self.names if key.__class__ is str else self.byte_names
        words = names.get(key)
        if words is None:
            if len(names) >= MOST_NAMES:
                names.clear()
            name = self.name(key)
            words = names[key] = b"".join([bulk(name + subject.suffix) for subject in self.subjects])
        return words

    def remember(self, key: str | bytes, state: State, now: int, sent: int) -> None:
        self.recent[key] = state
        self.seen = now, sent
        if len(self.recent) >= MOST_NAMES:
            self.age()

    def age(self) -> None:
        """Drop the older half of the remembered states."""
        self.older, self.recent = self.recent, {}

    def recall(self, key: str | bytes) -> State | None:
        state = self.recent.get(key)
        return self.older.get(key) if state is None else state

    def plan_words(self, operation: str, cost: int, whole: bool = False, lease: int = 0, lasts: int = 0) -> bytes:
        """The words of all subjects of one check."""
        if operation not in ("refund", "debit"):  # a key may owe more than the capacity
            cost = min(cost, self.most)
        return b"".join([subject.spell(operation, cost, whole, lease, lasts) for subject in self.subjects])

    def charge_words(self, costs: Sequence[int]) -> bytes:
        """The words of all subjects, with a cost for each limit by itself."""
        by_place = iter([costs[index] for index in self.order])
        return b"".join([subject.spell_charge([next(by_place) for _ in subject.parts]) for subject in self.subjects])

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

    def check_words(self, cost: int) -> bytes:
        """The words of a check.  The same object for the same cost, so that a batch writes them once."""
        if self.calendars:
            now = self.server_time()
            if not self.words_from <= now < self.words_until:
                windows = [calendar.around(now) for calendar in self.calendars]
                self.words_from, self.words_until = (
                    max(edges[1] for edges in windows),
                    min(edges[2] for edges in windows),
                )
                self.words.clear()
        words = self.words.get(cost)
        if words is None:
            if len(self.words) >= MOST_COSTS:
                self.words.clear()
            words = self.words[cost] = self.plan_words("check", cost)
        return words

    def bucket_state(self, numbers: Sequence[int]) -> State:
        """The canonical state of a record of nothing but buckets, from the instant and the rest of each."""
        states = [tat << FRACTION | rest for tat, rest in zip(numbers[::2], numbers[1::2], strict=True)]
        return tuple(states) if isinstance(self.limit, LimitSet) else states[0]

    def record_reader(self) -> Callable[[bytes], State]:
        """The function that reads the state of a single record, with the least work for the common limits."""
        if self.record_size == STAMP + BUCKET_STATE.size:
            unpack = STAMPED_BUCKET.unpack

            def read(record: bytes) -> State:
                tat, rest = unpack(record)
                return tat << FRACTION | rest

            return read
        limit = self.limit
        if self.is_single and isinstance(limit, Limit) and limit.algorithm == "fixed_window":
            micros, bits, number_of = limit.micros, limit.rule.BITS, int.from_bytes
            return lambda record: number_of(record[:7], "big") // micros << bits | number_of(record[7:], "big")
        if self.is_single and isinstance(limit, Limit) and not self.subjects[0].stamp:
            return partial(unpack_state, limit=limit)
        return lambda record: self.state((record,))

    def state(self, records: Sequence[bytes]) -> State:
        """The canonical state, from the records of all subjects."""
        limit = self.limit
        if not isinstance(limit, LimitSet):
            return self.subjects[0].states(records[0])[0] if records else limit.rule.EMPTY
        states: list[State] = [None] * len(limit.limits)
        unpacked = chain.from_iterable(
            [subject.states(record) for subject, record in zip(self.subjects, records, strict=True)]
        )
        for index, state in zip(self.order, unpacked, strict=True):
            states[index] = state
        return tuple(states)


def label(space: str) -> str:
    """A space's name with plain letters only; the digest keeps apart what looks alike here."""
    return "".join([letter if letter in PLAIN else "_" for letter in space[:SHOWN]])

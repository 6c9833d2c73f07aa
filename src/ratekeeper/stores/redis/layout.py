"""How one limit is kept in one space of a server: under which keys, in which records, for how long.

Key names are ``prefix:space:{digest}``.  The digest covers the space, the layout of the state and the caller's key, so
user text neither shows, nor collides, nor chooses a slot; a limit whose states mean something else finds other keys.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from itertools import chain
from struct import Struct

from ratekeeper.algorithms import BUCKETS
from ratekeeper.keys import wire
from ratekeeper.limit import LimitSet
from ratekeeper.stores.redis.packed_log import LogSummary, PackedLog
from ratekeeper.stores.redis.refusal_cache import RefusalCache
from ratekeeper.stores.redis.script import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.limit import Limit, State
    from ratekeeper.stores.fallback import FallbackTable

VERSION = b"3"  # of the records' formats: part of every key's digest, so a record of another version is never met
LONGEST_WHOLE = 64  # a log of more than so many is kept as a ring, which the server changes in place
SLACK = 1_000  # milliseconds that a key outlives its state
MOST_NAMES = 10_000
LOGS = ("sliding_log", "concurrency")  # their states grow and shrink
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
SHOWN = 32  # letters of a space in a key's name: for people, the digest tells spaces apart

BUCKET_STATE = Struct(">QI")
STAMP = 8  # bytes of the instant at which a record was made, where its first state does not tell
WINDOW_SIZE = 12  # 7 bytes for the instant, 5 for what was used in its window
LOG_LENGTHS = range(0, 7 << 21, 7)  # of more instants than any limit has
LENGTH = Struct(">I")


def bulk(word: bytes) -> bytes:
    """One word of a command, as the protocol writes it."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def number(value: int) -> bytes:
    return bulk(b"%d" % value)


def packed_number(value: int) -> bytes:
    """In msgpack."""
    return bytes([value]) if value < 128 else b"\xcf" + value.to_bytes(8, "big")


def packed_limit(limit: Limit, kind: str, cost: int) -> bytes:
    """A limit and what is asked of it, as the script reads them."""
    numbers: tuple[int, ...] = limit.micros, limit.count
    if limit.algorithm in BUCKETS:
        numbers = limit.drain, *divmod(limit.unit, limit.drain), *divmod(limit.full, limit.drain)
    elif limit.algorithm == "sliding_window":
        numbers = limit.slices, *numbers
    numbers = ord(kind), cost, *numbers, *(0,) * (5 - len(numbers))
    return b"".join([packed_number(each) for each in numbers])


def state_size(limit: Limit) -> int:
    """Bytes of a state where that is fixed: every rule but the log."""
    if limit.algorithm in BUCKETS:
        return BUCKET_STATE.size
    return 7 + 5 * (limit.slices + 1) if limit.algorithm == "sliding_window" else WINDOW_SIZE


def unpack_state(record: bytes, limit: Limit) -> State:
    """The canonical state of a record: what the Python rule would have."""
    rule = limit.rule
    if not record:
        return rule.EMPTY
    if limit.algorithm in BUCKETS:
        tat, rest = BUCKET_STATE.unpack(record)
        return tat * limit.drain + rest
    if limit.algorithm == "fixed_window":
        window = int.from_bytes(record[:7], "big") // limit.micros
        return window << rule.BITS | int.from_bytes(record[7:], "big")
    if limit.algorithm == "sliding_window":
        state = int.from_bytes(record[:7], "big") * limit.slices // limit.micros
        for at in range(len(record) - 5, 6, -5):  # the newest counter is first in the record, lowest in the number
            state = state << rule.FIELD | int.from_bytes(record[at : at + 5], "big")
        return state
    return PackedLog(record) if len(record) != LogSummary.SIZE else LogSummary(record)


def time_to_live(limit: Limit) -> int:
    """Milliseconds after which any state of ``limit`` is EMPTY again, and a little more."""
    return -(-limit.recovery // 1000) + SLACK


class Subject:
    """One key of a check: the limits whose states are in its record, and how the script is told."""

    __slots__ = ("cuts", "instant", "kinds", "lengths", "parts", "ring", "size", "stamp", "suffix", "ttl")
    lengths: Sequence[int]  # that a record may have

    def __init__(self, parts: Sequence[Limit], suffix: bytes, longer: int) -> None:
        self.parts = parts
        self.suffix = suffix
        self.ring = parts[0].algorithm == "sliding_log" and parts[0].count > LONGEST_WHOLE
        self.kinds = "r" if self.ring else "".join([KINDS[part.algorithm] for part in parts])
        self.ttl = number(max(longer, *[time_to_live(part) for part in parts]))
        self.stamp = STAMP if parts[0].algorithm in BUCKETS else 0
        self.size, self.lengths, self.cuts = 0, LOG_LENGTHS, []  # 0: it varies
        self.instant = slice(-7, None)  # where a record tells when it was made
        if parts[0].algorithm not in LOGS:
            self.instant = slice(self.stamp or 7)
            self.size = self.stamp
            for part in parts:
                start, self.size = self.size, self.size + state_size(part)
                self.cuts.append((start, self.size))
            self.lengths = (0, self.size)

    def spell(self, operation: str, cost: int, whole: bool) -> bytes:
        """This subject's words behind those of its plan."""
        kinds = self.kinds
        if whole and self.ring:
            kinds = "w"
        if operation == "refund":  # the same function for all three buckets
            kinds = kinds.translate(REFUND_KINDS)
        if operation in ("reset", "states"):
            return bulk(kinds[:1].encode())
        limits = [packed_limit(part, kind, cost) for part, kind in zip(self.parts, kinds, strict=True)]
        return bulk(b"".join(limits)) + self.ttl

    def states(self, record: bytes) -> list[State]:
        if len(self.parts) == 1:
            return [unpack_state(record[self.stamp :], self.parts[0])]
        return [unpack_state(record[start:end], part) for (start, end), part in zip(self.cuts, self.parts, strict=True)]


REFUND_KINDS = str.maketrans("tl", "gg")


class RecordLayout:
    """How the states of one limit, or of several decided as one, are kept in one space."""

    __slots__ = (
        "bucket",
        "denials",
        "desk",
        "digests",
        "first",
        "is_packed",
        "limit",
        "most",
        "names",
        "older",
        "once",
        "order",
        "prefix",
        "recent",
        "seen",
        "space",
        "subjects",
    )

    def __init__(
        self,
        space: str,
        limit: Limit | LimitSet,
        prefix: bytes = b"rk",
        secret: bytes = b"",
        longer: int = 0,
        denials: RefusalCache | None = None,
    ) -> None:
        self.space = space
        self.limit = limit
        self.denials = RefusalCache(enabled=False) if denials is None else denials
        parts: Sequence[Limit] = limit.parts
        # A log changes its length, so each has a key of its own; the others share a record.
        packed = [index for index, part in enumerate(parts) if part.algorithm not in ("unlimited", *LOGS)]
        logs = [index for index, part in enumerate(parts) if part.algorithm in LOGS]
        groups = ([packed] if packed else []) + [[index] for index in logs]
        self.order = [index for group in groups for index in group]
        self.subjects = []
        for group in groups:
            suffix = (
                b"" if group is packed else b".%d" % group[0] + (b"r" if parts[group[0]].count > LONGEST_WHOLE else b"")
            )
            self.subjects.append(Subject([parts[index] for index in group], suffix, longer))
        self.most = max(part.capacity for part in parts) + 1  # a greater cost is refused and refunded just like it
        self.prefix = prefix + b":" + label(space).encode() + b":{"
        self.digests = blake2b(key=secret[:64], digest_size=16, person=b"ratekeeper" + VERSION)
        for part in (space.encode("utf-8", "surrogatepass"), limit.layout.encode()):
            self.digests.update(LENGTH.pack(len(part)) + part)
        self.names: dict[str | bytes, tuple[bytes, ...]] = {}
        # What the server last said of each key, for the standby; the older half is dropped when the newer is full.
        self.recent: dict[str | bytes, State] = {}
        self.older: dict[str | bytes, State] = {}
        self.seen = (0, 0)  # the server's microseconds, and our nanoseconds when we asked: the last time it answered
        self.desk: FallbackTable | None = None  # where it is counted while the server is away
        single = len(self.subjects) == 1 and len(parts) == 1
        self.bucket = single and parts[0].algorithm in BUCKETS
        self.once = self.plan_words("check", 1)
        self.first = single
        self.is_packed = not logs

    def name(self, key: str | bytes) -> bytes:
        """The name of the key of the first subject; those of the others begin with it."""
        digests = self.digests.copy()
        digests.update(wire(key))
        return self.prefix + urlsafe_b64encode(digests.digest())[:22] + b"}"

    def keys(self, key: str | bytes) -> tuple[bytes, ...]:
        """The names of all subjects' keys, as words of a command."""
        found = self.names.get(key)
        if found is None:
            if len(self.names) >= MOST_NAMES:
                self.names.clear()
            name = self.name(key)
            found = self.names[key] = tuple([bulk(name + subject.suffix) for subject in self.subjects])
        return found

    def remember(self, key: str | bytes, state: State, now: int, sent: int) -> None:
        self.recent[key] = state
        self.seen = now, sent
        if len(self.recent) >= MOST_NAMES:
            self.older, self.recent = self.recent, {}

    def recall(self, key: str | bytes) -> State | None:
        found = self.recent.get(key)
        return self.older.get(key) if found is None else found

    def plan_words(self, operation: str, cost: int, whole: bool = False) -> bytes:
        """The words of all subjects of one check."""
        cost = min(cost, self.most)
        return b"".join([subject.spell(operation, cost, whole) for subject in self.subjects])

    def state(self, records: Sequence[bytes]) -> State:
        """The canonical state, of all subjects' records."""
        limit = self.limit
        if not isinstance(limit, LimitSet):
            return self.subjects[0].states(records[0])[0] if records else limit.rule.EMPTY
        found: list[State] = [None] * len(limit.limits)
        states = chain.from_iterable(
            [subject.states(record) for subject, record in zip(self.subjects, records, strict=True)]
        )
        for index, state in zip(self.order, states, strict=True):
            found[index] = state
        return tuple(found)


def label(space: str) -> str:
    """A space's name as far as it is plain; the digest tells apart what looks alike here."""
    return "".join([letter if letter in PLAIN else "_" for letter in space[:SHOWN]])

"""Plans <-> the words and replies of the script: shared by the sync and the async store.

A ``Ledger`` knows how one limit is kept in one space: under which keys, in which records, for how long.  A ``Request``
is one plan ready to be sent; ``read`` turns the reply into what the store answers, with the canonical states of the
Python rules, so that every figure a caller sees comes from the reference.

Key names are ``prefix:space:{digest}``.  The digest covers the space, the layout of the state and the caller's key, so
user text neither shows, nor collides, nor chooses a slot; a limit whose states mean something else finds other keys.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from itertools import chain
from struct import Struct
from time import time_ns

from ratekeeper.algorithms import BUCKETS
from ratekeeper.keys import wire
from ratekeeper.model import Decision, Several, decided
from ratekeeper.stores.denials import Denials
from ratekeeper.stores.logs import Glimpse, PackedLog, plain
from ratekeeper.stores.script import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Protocol

    from ratekeeper.model import Check, Limit, Plan, State
    from ratekeeper.stores.standby import Desk

    class Future(Protocol):
        """Where a caller waits: asyncio's, or a thread's (see combine.py)."""

        def done(self) -> bool: ...
        def set_result(self, result: Any) -> None: ...
        def set_exception(self, error: BaseException) -> None: ...


VERSION = b"3"  # of the records' formats: part of every key's digest, so a record of another version is never met
LONGEST_WHOLE = 64  # a log of more than so many is kept as a ring, which the server changes in place
SLACK = 1_000  # milliseconds that a key outlives its state
MOST_NAMES = 10_000
SUBJECT_WORDS = 2  # limits, time to live
MOST_AT_ONCE = 100  # subjects of a plan that the script decides by recursion
LOGS = ("sliding_log", "concurrency")  # their states grow and shrink
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
SHOWN = 32  # letters of a space in a key's name: for people, the digest tells spaces apart

BUCKET_STATE = Struct(">QI")
BUCKET_TAKEN = Struct(">QQI")  # the reply is the record: the instant at which it was made, and the state
BUCKET_REFUSED = Struct(">q8xQI")  # before it stands the complement of now
STAMP = 8  # bytes of the instant at which a record was made, where its first state does not tell
WINDOW_SIZE = 12  # 7 bytes for the instant, 5 for what was used in its window
LOG_LENGTHS = range(0, 7 << 21, 7)  # of more instants than any limit has
INSTANT = Struct(">q")  # in a reply to a plan that was refused, its complement: negative
FITS_FLAG, EMPTY_FLAG = 1, 2
LENGTH = Struct(">I")


def bulk(word: bytes) -> bytes:
    """One word of a command, as the protocol writes it."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def number(value: int) -> bytes:
    return bulk(b"%d" % value)


ONE = bulk(b"one")  # a check of one subject
EACH = bulk(b"each")  # many of them, alike but for the key


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
    return PackedLog(record) if len(record) != Glimpse.SIZE else Glimpse(record)


def time_to_live(limit: Limit) -> int:
    """Milliseconds after which any state of ``limit`` is EMPTY again, and a little more."""
    micros = limit.micros
    if limit.algorithm in BUCKETS:
        micros = -(-limit.full // limit.drain)
    elif limit.algorithm == "sliding_window":
        micros = -(-micros * (limit.slices + 1) // limit.slices)
    return -(-micros // 1000) + SLACK


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


class Ledger:
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
        limit: Limit | Several,
        prefix: bytes = b"rk",
        secret: bytes = b"",
        longer: int = 0,
        denials: Denials | None = None,
    ) -> None:
        self.space = space
        self.limit = limit
        self.denials = Denials(enabled=False) if denials is None else denials
        parts: Sequence[Limit] = limit.limits if isinstance(limit, Several) else (limit,)
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
        self.desk: Desk | None = None  # where it is counted while the server is away
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
        if not isinstance(limit, Several):
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


def opened(reply: bytes, subject: Subject) -> tuple[bool, int, bytes]:
    """Whether it was taken, when, and the record: of a reply to a plan of one subject."""
    if reply[0] < 128:  # nothing but the new record, which tells when
        taken, now, record = True, int.from_bytes(reply[subject.instant], "big"), reply
    else:
        taken, now, record = False, ~INSTANT.unpack_from(reply)[0], reply[8:]
    if len(record) not in subject.lengths and not (subject.ring and len(record) == Glimpse.SIZE):
        raise ValueError(f"a record of {len(record)} bytes")
    return taken, now, record


class Request:
    """One plan on its way: ``keys`` and ``words`` are parts of a command, ``read`` takes the reply."""

    __slots__ = ("checks", "future", "keys", "keys_count", "operation", "word", "words", "words_count")
    future: Future

    def __init__(self, operation: str, checks: Sequence[tuple[Check, Ledger]], at: int | None = None) -> None:
        self.operation = operation
        self.checks = checks
        names = [ledger.keys(check.key) for check, ledger in checks]
        flat = [name for group in names for name in group]
        # A ring that stands twice in a plan must see its own first change, so it is read and written whole.
        whole = operation not in ("check", "peek") or len(set(flat)) < len(flat)
        self.keys = b"".join(flat)
        self.keys_count = len(flat)
        word = operation
        if operation == "check" and not whole:
            if len(flat) == 1:
                word = "one"
            elif len(flat) <= MOST_AT_ONCE and all(ledger.is_packed for _, ledger in checks):
                word = "all"
        self.word = word  # what the script is asked for
        if word == "one":
            words, count = b"", 0
        else:
            sizes = bulk(bytes([len(group) for group in names])) if word in ("check", "peek") else number(len(flat))
            words, count = bulk(word.encode()) + sizes, 2
        if operation == "refund":
            words += bulk(b"" if at is None else b"%d" % at)
            count += 1
        pieces = [words]
        for check, ledger in checks:
            pieces.append(ledger.plan_words(operation, check.cost, whole))
            count += len(ledger.subjects) * (1 if operation in ("reset", "states") else SUBJECT_WORDS)
        self.words = b"".join(pieces)
        self.words_count = 0 if word == "one" else count  # its word depends on who travels with it

    def read(self, reply: bytes, sent: int) -> Any:
        """What the store answers: decisions, or for ``states`` now and the states."""
        flags, now, records = self.parts(reply)
        if self.operation == "reset":
            for check, ledger in self.checks:
                ledger.denials.forget(check.key)
            return None
        found = []
        first = 0
        for check, ledger in self.checks:
            last = first + len(ledger.subjects)
            state = ledger.state(records[first:last])
            ledger.remember(check.key, state, now, sent)
            fits = all(flag & FITS_FLAG for flag in flags[first:last])
            if self.operation in ("check", "take", "refund"):
                if fits:
                    ledger.denials.forget(check.key)
                else:
                    ledger.denials.note(check.key, ledger.limit, check.cost, state, now, sent)
            found.append((check, fits, state))
            first = last
        if self.operation == "states":
            return now, tuple([plain(state) for _, _, state in found])
        return self.decisions(found, now)

    def parts(self, reply: bytes) -> tuple[bytes, int, list[bytes]]:
        """The flags, the instant and the records of a reply."""
        many = self.keys_count
        subjects = [subject for _, ledger in self.checks for subject in ledger.subjects]
        if self.word == "one":
            taken, now, record = opened(reply, subjects[0])
            return bytes([taken]), now, [record]
        if self.word == "all":
            flags, now, at = b"\1" * many, int.from_bytes(reply[subjects[0].instant], "big"), 0
            if reply[0] >= 128:
                flags, now, at = reply[8 : 8 + many], ~INSTANT.unpack_from(reply)[0], 8 + many
        else:
            flags, at = reply[:many], many + 8
            (now,) = INSTANT.unpack_from(reply, many)
            if many == 1:
                return flags, now, [reply[at:]]
        records = []
        for flag, subject in zip(flags, subjects, strict=True):
            length = 0 if flag & EMPTY_FLAG else subject.size
            if not subject.size or self.operation not in ("check", "peek"):
                (length,) = LENGTH.unpack_from(reply, at)
                at += 4
            records.append(reply[at : at + length])
            at += length
        return flags, now, records

    def decisions(self, found: Iterable[tuple[Check, bool, State]], now: int) -> tuple[Decision, ...]:
        if self.operation in ("take", "refund"):
            return tuple([decision(True, check.limit, state, now, 0) for check, _, state in found])
        found = list(found)
        taken = self.operation == "check" and all(allowed for _, allowed, _ in found)
        return tuple(
            [
                decision(allowed, check.limit, state, now, check.cost if taken or not allowed else 0)
                for check, allowed, state in found
            ]
        )


class CheckOne:
    """The common request: one check of one limit in one record, made and read with the least work."""

    __slots__ = ("cost", "future", "key", "keys", "ledger", "words")
    future: Future
    operation = "check"
    keys_count = 1
    words_count = 0  # as of any check of one subject

    def __init__(self, ledger: Ledger, key: str | bytes, cost: int) -> None:
        self.ledger = ledger
        self.key = key
        self.cost = cost
        found = ledger.names.get(key)
        self.keys = (found or ledger.keys(key))[0]
        self.words = ledger.once if cost == 1 else ledger.plan_words("check", cost)

    def read(self, reply: bytes, sent: int) -> tuple[Decision, ...]:
        ledger = self.ledger
        limit = ledger.limit
        if ledger.bucket and len(reply) == BUCKET_TAKEN.size:
            allowed = True
            now, tat, rest = BUCKET_TAKEN.unpack(reply)
            state = tat * limit.drain + rest  # type: ignore[union-attr]
        elif ledger.bucket and len(reply) == BUCKET_REFUSED.size:
            allowed = False
            refused, tat, rest = BUCKET_REFUSED.unpack(reply)
            now, state = ~refused, tat * limit.drain + rest  # type: ignore[union-attr]
        else:
            subject = ledger.subjects[0]
            allowed, now, record = opened(reply, subject)
            state = unpack_state(record[subject.stamp :], limit)  # type: ignore[arg-type]
        ledger.remember(self.key, state, now, sent)
        denials = ledger.denials
        if not allowed:
            denials.note(self.key, limit, self.cost, state, now, sent)
        elif self.key in denials.by_key:
            denials.admitted(self.key, limit, self.cost, state, now, sent)
        return (decided(Decision, (allowed, limit, state, now, self.cost)),)


AnyRequest = Request | CheckOne


def decision(allowed: bool, limit: Limit | Several, state: State, now: int, cost: int) -> Decision:
    """The one place where an answer of the server becomes a Decision."""
    return decided(Decision, (allowed, limit, state, now, cost))


def without_server(operation: str, plan: Plan) -> Any:
    """The answer to a plan of nothing but unlimited checks: there is nothing to ask."""
    now = time_ns() // 1000
    if operation == "reset":
        return None
    if operation == "states":
        return now, tuple([0 for _ in plan])
    return tuple([decision(True, check.limit, 0, now, check.cost) for check in plan])


def evaluation(script: bytes) -> bytes:
    """The first words of a command that has the script run."""
    return bulk(b"EVALSHA") + bulk(script)


def lone_start(script: bytes) -> bytes:
    """What the command of a single CheckOne begins with; its key and its words follow."""
    return b"*%d\r\n%b%b" % (4 + SUBJECT_WORDS, evaluation(script), number(1))


def command(requests: Sequence[Request | CheckOne], name: bytes, script: bytes, now: int | None) -> bytes:
    """EVALSHA or EVAL of all these requests, one after the other, in one step of the server."""
    keys = [request.keys for request in requests]
    pieces: list[bytes] = [] if now is None else [number(now)]
    keys_count, words_count = 0, len(pieces)
    at, many = 0, len(requests)
    while at < many:
        request = requests[at]
        at += 1
        keys_count += request.keys_count
        if request.words_count:
            pieces.append(request.words)
            words_count += request.words_count
            continue
        words, first = request.words, at - 1
        while at < many and requests[at].words is words:  # the very words: one limit, and the same cost
            at += 1
        alike = at - first
        keys_count += alike - 1
        if many == 1:  # what is asked alone needs no word for it
            pieces.append(words)
            words_count += SUBJECT_WORDS
        elif alike == 1:
            pieces += ONE, words
            words_count += 1 + SUBJECT_WORDS
        else:
            pieces += EACH, number(alike), words
            words_count += 2 + SUBJECT_WORDS
    start = b"*%d\r\n%b%b%b" % (3 + keys_count + words_count, bulk(name), bulk(script), number(keys_count))
    return b"".join([start, *keys, *pieces])

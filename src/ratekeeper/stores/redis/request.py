"""Plans <-> the words and replies of the script: shared by the sync and the async store.

A ``PlanRequest`` is one plan ready to be sent; ``read`` turns the reply into what the store answers, with the canonical
states of the Python rules, so that every figure a caller sees comes from the reference.  How a limit is kept is in
ledger.py.
"""

from __future__ import annotations

from struct import Struct
from time import time_ns

from ratekeeper.decision import Decision, decided
from ratekeeper.limit import LimitSet
from ratekeeper.stores.redis.layout import LENGTH, bulk, number, unpack_state
from ratekeeper.stores.redis.packed_log import LogSummary, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Protocol

    from ratekeeper.check import Check, Plan
    from ratekeeper.limit import Limit, State
    from ratekeeper.stores.redis.layout import RecordLayout, Subject

    class Future(Protocol):
        """Where a caller waits: asyncio's, or a thread's (see combine.py)."""

        def done(self) -> bool: ...
        def set_result(self, result: Any) -> None: ...
        def set_exception(self, error: BaseException) -> None: ...


SUBJECT_WORDS = 2  # limits, time to live
MOST_AT_ONCE = 100  # subjects of a plan that the script decides by recursion

BUCKET_TAKEN = Struct(">QQI")  # the reply is the record: the instant at which it was made, and the state
BUCKET_REFUSED = Struct(">q8xQI")  # before it stands the complement of now
TAKEN_SIZE, unpack_taken = BUCKET_TAKEN.size, BUCKET_TAKEN.unpack  # looked up once
REFUSED_SIZE, unpack_refused = BUCKET_REFUSED.size, BUCKET_REFUSED.unpack
INSTANT = Struct(">q")  # in a reply to a plan that was refused, its complement: negative
FITS_FLAG, EMPTY_FLAG = 1, 2


ONE = bulk(b"one")  # a check of one subject
EACH = bulk(b"each")  # many of them, alike but for the key


def opened(reply: bytes, subject: Subject) -> tuple[bool, int, bytes]:
    """Whether it was taken, when, and the record: of a reply to a plan of one subject."""
    if reply[0] < 128:  # nothing but the new record, which tells when
        taken, now, record = True, int.from_bytes(reply[subject.instant], "big"), reply
    else:
        taken, now, record = False, ~INSTANT.unpack_from(reply)[0], reply[8:]
    if len(record) not in subject.lengths and not (subject.ring and len(record) == LogSummary.SIZE):
        raise ValueError(f"a record of {len(record)} bytes")
    return taken, now, record


class PlanRequest:
    """One plan on its way: ``keys`` and ``words`` are parts of a command, ``read`` takes the reply."""

    __slots__ = ("checks", "future", "keys", "keys_count", "operation", "word", "words", "words_count")
    future: Future

    def __init__(self, operation: str, checks: Sequence[tuple[Check, RecordLayout]], at: int | None = None) -> None:
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


class CheckRequest:
    """The common request: one check of one limit in one record, made and read with the least work."""

    __slots__ = ("cost", "future", "key", "keys", "ledger", "words")
    future: Future
    operation = "check"
    keys_count = 1
    words_count = 0  # as of any check of one subject

    def __init__(self, ledger: RecordLayout, key: str | bytes, cost: int) -> None:
        self.ledger = ledger
        self.key = key
        self.cost = cost
        found = ledger.names.get(key)
        self.keys = (found or ledger.keys(key))[0]
        self.words = ledger.once if cost == 1 else ledger.plan_words("check", cost)

    def read(self, reply: bytes, sent: int) -> tuple[Decision, ...]:
        ledger = self.ledger
        limit = ledger.limit
        size = len(reply) if ledger.bucket else 0
        if size == TAKEN_SIZE:
            allowed = True
            now, tat, rest = unpack_taken(reply)
            state = tat * limit.drain + rest  # type: ignore[union-attr]
        elif size == REFUSED_SIZE:
            allowed = False
            refused, tat, rest = unpack_refused(reply)
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


AnyRequest = PlanRequest | CheckRequest


def decision(allowed: bool, limit: Limit | LimitSet, state: State, now: int, cost: int) -> Decision:
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


def command(requests: Sequence[PlanRequest | CheckRequest], name: bytes, script: bytes, now: int | None) -> bytes:
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

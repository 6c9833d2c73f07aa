"""Plans as words of the script, and its replies as decisions: shared by threads and event loops.  No I/O.

A request is one plan ready to be sent.  ``read`` turns the reply into what the store answers, with the canonical states
of the Python rules, so that every figure a caller sees comes from the reference.  layout.py says how a limit is kept.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from time import time_ns

from ratekeeper.algorithms.gcra import FRACTION
from ratekeeper.decision import Decision, new_decision
from ratekeeper.limit import LimitSet
from ratekeeper.stores.redis.layout import LENGTH, MOST_NAMES
from ratekeeper.stores.redis.packed_log import LogSummary, plain
from ratekeeper.stores.redis.resp import bulk, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from ratekeeper.check import Plan
    from ratekeeper.limit import Limit, State
    from ratekeeper.stores.redis.layout import RecordLayout, Subject

    LayoutCheck = tuple[RecordLayout, str | bytes, int]  # a check: how its limit is kept, its encoded key and its cost

    class AnyRequest(Protocol):
        """A request of a batch: its parts of the command, and the future of the caller that waits for the reply."""

        future: Any
        operation: str
        keys: bytes
        words: bytes

        @property
        def keys_count(self) -> int: ...
        @property
        def words_count(self) -> int: ...  # 0: a check of one subject, whose word depends on the other requests

        def read(self, reply: bytes, sent: int) -> Any: ...
        def fail(self, error: BaseException) -> None: ...

    class Future(Protocol):
        """What a caller waits for: a future of asyncio, or a Waiter of combiner.py."""

        def done(self) -> bool: ...
        def set_result(self, result: Any) -> None: ...
        def set_exception(self, error: BaseException) -> None: ...


SUBJECT_WORDS = 2  # limits, time to live
MOST_AT_ONCE = 100  # subjects of a plan that the script decides by recursion

BUCKET_TAKEN = Struct(">QQI")  # a record of one bucket, which is the reply, too: when it was made, and the state
TAKEN_SIZE, unpack_taken = BUCKET_TAKEN.size, BUCKET_TAKEN.unpack  # looked up once
INSTANT = Struct(">q")  # before the records of a plan that was refused stands the complement of now: negative
FITS_FLAG, EMPTY_FLAG, LEAST_FLAG = 1, 2, 4
AHEAD = 128  # the first byte of a reply whose records, though taken, are from after now; now follows in seven bytes


ONE = bulk(b"one")  # a check of one subject
EACH = bulk(b"each")  # many of them, alike but for the key
ALL = bulk(b"all")  # a plan of several subjects, decided all or nothing
PLANS = bulk(b"plans")  # many of them, alike but for the keys
PREFETCH = bulk(b"prefetch")
CHARGE = bulk(b"charge")


def opened(reply: bytes, subject: Subject) -> tuple[bool, int, bytes]:
    """The reply to a plan of one subject: whether the cost was taken, when, and the record."""
    if reply[0] < 128:  # only the new record, which says when it was made
        taken, now, record = True, int.from_bytes(reply[subject.instant], "big"), reply
    elif reply[0] == AHEAD:
        taken, now, record = True, int.from_bytes(reply[1:8], "big"), reply[8:]
    else:
        taken, now, record = False, ~INSTANT.unpack_from(reply)[0], reply[8:]
    if len(record) not in subject.lengths and not (subject.ring and len(record) == LogSummary.SIZE):
        raise ValueError(f"a record of {len(record)} bytes")
    return taken, now, record


class PlanWords:
    """The words of a plan with these limits and costs, whatever its keys are, and how to read the reply."""

    __slots__ = ("keys_count", "operation", "subjects", "word", "words", "words_count")

    def __init__(
        self,
        operation: str,
        layouts: Sequence[RecordLayout],
        costs: Sequence[int],
        at: int | None = None,
        has_repeats: bool = False,
        leases: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.operation = operation
        self.subjects = [subject for layout in layouts for subject in layout.subjects]
        self.keys_count = len(self.subjects)
        # A ring that stands twice in a plan must see its own first change, so it is read and written whole.
        whole = operation not in ("check", "peek") or has_repeats
        word = operation
        if operation == "check" and not whole:
            if self.keys_count == 1 and not layouts[0].is_leased:
                word = "one"
            elif self.keys_count <= MOST_AT_ONCE and all(layout.is_packed for layout in layouts):
                word = "all"
        self.word = word  # the operation that the script is asked for
        if word == "one":
            (self.words,) = [layout.check_words(cost) for layout, cost in zip(layouts, costs, strict=True)]
            self.words_count = 0  # its word depends on the other requests of the command
            return
        by_check = word in ("check", "peek")
        sizes = bulk(bytes([len(layout.subjects) for layout in layouts])) if by_check else number(self.keys_count)
        pieces = [bulk(word.encode()), sizes]
        if operation == "refund":
            pieces.append(bulk(b"" if at is None else b"%d" % at))
        per_subject = 1 if operation in ("reset", "states") else SUBJECT_WORDS
        self.words_count = len(pieces) + self.keys_count * per_subject
        for number_of, (layout, cost) in enumerate(zip(layouts, costs, strict=True)):
            pieces.append(layout.plan_words(operation, cost, whole, *(leases[number_of] if leases else ())))
        self.words = b"".join(pieces)

    def parts(self, reply: bytes) -> tuple[bytes, int, list[bytes]]:
        """The flags, the instant and the records of a reply."""
        many = self.keys_count
        subjects = self.subjects
        if self.word == "one":
            taken, now, record = opened(reply, subjects[0])
            return bytes([taken]), now, [record]
        if self.word == "all":
            flags, now, at = b"\1" * many, int.from_bytes(reply[subjects[0].instant], "big"), 0
            if reply[0] >= 128:
                flags, now, at = reply[8 : 8 + many], ~INSTANT.unpack_from(reply)[0], 8 + many
                if reply[0] == AHEAD:
                    now = int.from_bytes(reply[1:8], "big")
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

    def answers(self, reply: bytes, checks: Sequence[LayoutCheck], sent: int) -> tuple[list[tuple[bool, State]], int]:
        """Whether each check fits and its state, and the instant; remembered for the fallback and later refusals."""
        flags, now, records = self.parts(reply)
        answers = []
        first = 0
        for layout, key, cost in checks:
            last = first + len(layout.subjects)
            state = layout.state(records[first:last])
            layout.remember(key, state, now, sent)
            fits = all(flag & FITS_FLAG for flag in flags[first:last])
            if self.operation in ("check", "take", "debit", "refund"):
                if fits:
                    layout.refusals.forget(key)
                else:
                    layout.refusals.note(key, layout.limit, cost, state, now, sent)
            answers.append((fits, state))
            first = last
        return answers, now


class PlanRequest:
    """A request of any plan and operation."""

    __slots__ = ("checks", "future", "keys", "keys_count", "leases", "operation", "plan_words", "words", "words_count")
    future: Future

    def __init__(
        self,
        operation: str,
        checks: Sequence[LayoutCheck],
        at: int | None = None,
        leases: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.operation = operation
        self.checks = checks
        self.leases = leases  # the id of each check, and how long it lasts
        names = [layout.keys(key) for layout, key, _ in checks]
        self.keys = b"".join(names)
        layouts, costs = [layout for layout, _, _ in checks], [cost for _, _, cost in checks]
        words = self.plan_words = PlanWords(operation, layouts, costs, at, len(set(names)) < len(names), leases)
        self.keys_count, self.words, self.words_count = words.keys_count, words.words, words.words_count

    def read(self, reply: bytes, sent: int) -> Any:
        """What the store answers: decisions, or for ``states`` the instants and the states."""
        if self.operation == "reset":
            for layout, key, _ in self.checks:
                layout.refusals.forget(key)
            return None
        if self.operation == "renew" or (self.operation == "end_leases" and self.keys_count > 1):
            if len(reply) != self.keys_count + INSTANT.size:
                raise ValueError(f"a reply of {len(reply)} bytes")
            return tuple([bool(flag) for flag in reply[: self.keys_count]])
        answers, now = self.plan_words.answers(reply, self.checks, sent)
        if self.operation == "states":
            return (now,) * len(answers), tuple([plain(state) for _, state in answers])
        if self.operation in ("take", "debit", "refund", "end_leases"):
            return tuple(
                [
                    decision(True, layout.limit, state, now, 0)
                    for (layout, _, _), (_, state) in zip(self.checks, answers, strict=True)
                ]
            )
        taken = self.operation == "check" and all(fits for fits, _ in answers)
        return tuple(
            [
                decision(fits, layout.limit, state, now, cost if taken or not fits else 0)
                for (layout, _, cost), (fits, state) in zip(self.checks, answers, strict=True)
            ]
        )

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)


class CheckRequest:
    """The common request: one check of one record, made and read with the least work."""

    __slots__ = ("cost", "future", "key", "keys", "layout", "words")
    future: Future
    operation = "check"
    keys_count = 1
    words_count = 0  # as of any check of one subject

    def __init__(self, layout: RecordLayout, key: str | bytes, cost: int) -> None:
        self.layout = layout
        self.key = key
        self.cost = cost
        self.keys = layout.names.get(key) or layout.keys(key)  # type: ignore[arg-type]
        self.words = (layout.once if cost == 1 else b"") or layout.check_words(cost)

    def read(self, reply: bytes, sent: int) -> tuple[Decision, ...]:
        layout = self.layout
        limit, key = layout.limit, self.key
        size = len(reply) if layout.record_size else 0
        if size == TAKEN_SIZE and layout.record_size == size:  # one bucket: by far the most common reply
            allowed = True
            now, tat, rest = unpack_taken(reply)
            state: State = tat << FRACTION | rest
        elif size and size == layout.record_size:
            allowed = True
            now, *numbers = layout.unpack(reply)
            state = layout.bucket_state(numbers)
        elif size and size == layout.record_size + INSTANT.size:
            allowed = False
            now = ~INSTANT.unpack_from(reply)[0]
            state = layout.bucket_state(layout.unpack(reply[INSTANT.size :])[1:])
        else:
            allowed, now, record = opened(reply, layout.subjects[0])
            state = layout.read_record(record) if record else layout.state((record,))
        layout.recent[key] = state
        layout.seen = now, sent
        if len(layout.recent) >= MOST_NAMES:
            layout.age()
        if not allowed:
            layout.refusals.note(key, limit, self.cost, state, now, sent)
        elif key in layout.refusals.by_key:
            layout.refusals.admitted(key, limit, self.cost, state, now, sent)
        return (new_decision(Decision, (allowed, limit, state, now, self.cost)),)

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)


class PrefetchRequest:
    """Give back what was ``unused`` of a quota debited at the instant ``at``, and debit ``cost``, or ``least`` of it.

    In one request, so that it is decided within one deadline.  With a ``least`` of 0 it only gives back.
    """

    __slots__ = ("cost", "future", "key", "keys", "layout", "least", "unused", "words")
    future: Future
    operation = "prefetch"
    keys_count = 1
    words_count = 5 + SUBJECT_WORDS

    def __init__(self, layout: RecordLayout, key: str | bytes, least: int, cost: int, unused: int, at: int) -> None:
        self.layout = layout
        self.key = key
        self.least = min(least, layout.most)
        self.unused = unused
        self.keys = layout.keys(key)
        numbers = [number(each) for each in (1, self.least, unused, at)]
        self.words = b"".join([PREFETCH, *numbers, layout.plan_words("check", cost)])
        self.cost = cost

    def answer(self, reply: bytes, sent: int) -> tuple[Decision, int, State]:
        """The decision about ``least``, how much was debited, and the state."""
        layout, key = self.layout, self.key
        flag, now, record = reply[0], INSTANT.unpack_from(reply, 1)[0], reply[1 + INSTANT.size :]
        if len(record) not in layout.subjects[0].lengths:
            raise ValueError(f"a record of {len(record)} bytes")
        state = layout.read_record(record) if record else layout.limit.rule.EMPTY
        layout.remember(key, state, now, sent)
        if self.least and not flag:
            layout.refusals.note(key, layout.limit, self.least, state, now, sent)
        else:
            layout.refusals.forget(key)
        taken = 0 if not flag else self.least if flag & LEAST_FLAG else self.cost
        return decision(bool(flag), layout.limit, state, now, self.least), taken, state

    def read(self, reply: bytes, sent: int) -> Any:
        return self.answer(reply, sent)[0]

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)


class ChargeRequest:
    """Charge what the fallback admitted: of each limit of a key as much of its own cost as there is.

    No caller waits for the answer.  What the store certainly did not take is owed again.
    """

    __slots__ = ("costs", "future", "has_failed", "key", "keys", "keys_count", "layout", "owe", "words", "words_count")
    future: Future
    operation = "charge"

    def __init__(self, layout: RecordLayout, key: str | bytes, costs: Sequence[int], owe: Callable[..., None]) -> None:
        self.layout = layout
        self.key = key
        self.costs = costs
        self.owe = owe
        self.has_failed = False
        self.keys = layout.keys(key)
        self.keys_count = len(layout.subjects)
        self.words = CHARGE + number(self.keys_count) + layout.charge_words(costs)
        self.words_count = 2 + SUBJECT_WORDS * self.keys_count

    def read(self, reply: bytes, sent: int) -> None:
        """What is charged only makes a cached refusal last longer."""

    def fail(self, error: BaseException) -> None:
        self.has_failed = True
        if getattr(error, "charged", None) is False:
            self.owe(self.layout, self.key, self.costs)
        self.future.set_exception(error)


def decision(allowed: bool, limit: Limit | LimitSet, state: State, now: int, cost: int) -> Decision:
    """The one place where an answer of the server becomes a Decision."""
    return new_decision(Decision, (allowed, limit, state, now, cost))


def without_server(operation: str, plan: Plan) -> Any:
    """The answer to a plan of unlimited checks only: the server need not be asked."""
    now = time_ns() // 1000
    if operation == "reset":
        return None
    if operation == "states":
        return (now,) * len(plan), (0,) * len(plan)
    return tuple([decision(True, check.limit, 0, now, check.cost) for check in plan])


@lru_cache(8)
def evaluation(script: bytes, name: bytes = b"EVALSHA") -> bytes:
    """The first words of a command that runs the script."""
    return bulk(name) + bulk(script)


def lone_start(script: bytes) -> bytes:
    """How the command of a single check begins; its key and its words follow."""
    return b"*%d\r\n%b%b" % (4 + SUBJECT_WORDS, evaluation(script), number(1))


def command(requests: Sequence[AnyRequest], name: bytes, script: bytes, now: int | None) -> bytes:
    """One command, EVALSHA or EVAL, for all these requests.  The server executes it in one step."""
    keys = [request.keys for request in requests]
    pieces: list[bytes] = [] if now is None else [number(now)]
    keys_count, words_count = 0, len(pieces)
    at, many = 0, len(requests)
    while at < many:
        request = requests[at]
        at += 1
        keys_count += request.keys_count
        words, first = request.words, at - 1
        while at < many and requests[at].words is words:  # the same object: the same limits and costs
            keys_count += request.keys_count
            at += 1
        alike = at - first
        if request.words_count:
            if alike > 1 and words.startswith(ALL):
                pieces += PLANS, number(alike), words.removeprefix(ALL)
                words_count += 1 + request.words_count
            else:
                pieces += [words] * alike
                words_count += request.words_count * alike
        elif many == 1:  # a single check needs no word for the operation
            pieces.append(words)
            words_count += SUBJECT_WORDS
        elif alike == 1:
            pieces += ONE, words
            words_count += 1 + SUBJECT_WORDS
        else:
            pieces += EACH, number(alike), words
            words_count += 2 + SUBJECT_WORDS
    start = b"*%d\r\n%b%b" % (3 + keys_count + words_count, evaluation(script, name), number(keys_count))
    return b"".join([start, *keys, *pieces])

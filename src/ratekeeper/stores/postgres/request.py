"""Plans as parameters of the statement, and its rows as decisions: shared by threads and event loops.  No I/O."""

from __future__ import annotations

from ratekeeper.stores.redis.request import decision, without_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.limit import State
    from ratekeeper.stores.postgres.layout import RowLayout
    from ratekeeper.stores.redis.request import Future

    RowsCheck = tuple[RowLayout, str | bytes, int]  # a check: how its limit is kept, its encoded key and its cost
    # Of the statement: mark, key, kind, cost, numbers of the limit, how long it is kept, instant of a refund.
    Row = tuple[str, str, str, bytes, bytes, bytes, bytes]

MOST_REQUESTS = 128  # in one statement
# The letters of decide.sql.
MARKS = {
    "check": "c",
    "peek": "p",
    "take": "t",
    "charge": "t",
    "debit": "d",
    "refund": "r",
    "renew": "c",
    "end_leases": "e",
    "reset": "x",
    "states": "s",
}
TOGETHER = ("check", "peek")  # decided all or nothing; the other operations take each check by itself
NAMES_LEASES = ("check", "peek", "renew", "end_leases")


class RowsRequest:
    """One operation on one plan."""

    __slots__ = ("checks", "future", "operation", "plan", "rows")
    future: Future

    def __init__(self, operation: str, plan: Plan, layouts: Sequence[RowLayout], at: int | None = None) -> None:
        if operation == "debit" and any(layout.is_leased for layout in layouts):
            operation = "take"  # nobody can hold a place that does not exist
        self.operation = operation
        self.plan = plan
        self.checks: list[RowsCheck] = [
            (layout, check.key, check.cost) for layout, check in zip(layouts, plan, strict=True)
        ]
        mark, names_leases = MARKS[operation], operation in NAMES_LEASES
        taken_at = b"NULL" if at is None else b"%d" % max(0, at)
        rows: list[Row] = []
        for layout, check in zip(layouts, plan, strict=True):
            leases = (check.lease, check.lasts) if names_leases and check.lease else ()
            words = layout.row_words(operation, check.cost, *leases)
            names = layout.row_names(check.key)
            for index, (cost, numbers) in enumerate(words):
                if index:
                    mark = "."
                elif rows:
                    mark = "," if operation in TOGETHER else MARKS[operation]
                rows.append((mark, names[index], layout.kinds[index], cost, numbers, layout.keeps[index], taken_at))
        self.rows = rows

    def read(self, answers: Sequence[tuple[int, Sequence[int]]], now: int, sent: int) -> Any:
        """What the store answers: decisions, or for ``states`` the instants and the states."""
        operation = self.operation
        states: list[tuple[bool, State]] = []
        first = 0
        for layout, key, cost in self.checks:
            last = first + len(layout.parts)
            rows = answers[first:last]
            first = last
            fits = all(row[0] for row in rows)
            state = layout.state([row[1] for row in rows])
            states.append((fits, state))
            if not rows:
                continue
            layout.remember(key, state, now, sent)
            if operation == "check" and not fits:
                layout.refusals.note(key, layout.limit, cost, state, now, sent)
            elif operation not in ("peek", "states"):
                layout.refusals.forget(key)
        if operation == "reset":
            return None
        if operation == "renew":
            return tuple([fits for fits, _ in states])
        if operation == "states":
            return (now,) * len(states), tuple([state for _, state in states])
        taken = operation == "check" and all(fits for fits, _ in states)
        counts = operation in TOGETHER
        return tuple(
            [
                decision(fits, layout.limit, state, now, cost if counts and (taken or not fits) else 0)
                for (layout, _, cost), (fits, state) in zip(self.checks, states, strict=True)
            ]
        )

    def without_server(self) -> Any:
        """The answer of a plan without rows: all of it is unlimited."""
        if self.operation == "renew":
            return (True,) * len(self.plan)
        return without_server(self.operation, self.plan)

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)


class ChargedRows:
    """Charge what the fallback admitted: of each limit of a key as much of its own cost as there is.

    No caller waits for the answer.  What the store certainly did not take is owed again.
    """

    __slots__ = ("costs", "future", "has_failed", "key", "layout", "owe", "rows")
    future: Future
    operation = "charge"

    def __init__(self, layout: RowLayout, key: str | bytes, costs: Sequence[int], owe: Callable[..., None]) -> None:
        self.layout = layout
        self.key = key
        self.costs = costs
        self.owe = owe
        self.has_failed = False
        names = layout.row_names(key)
        words = [layout.row_words("check", max(1, cost))[index] for index, cost in enumerate(costs)]
        # Each limit is a plan of its own.  A cost above the capacity stands for all that is there.
        self.rows: list[Row] = [
            ("t", name, kind, b"%d" % min(cost, part.capacity), numbers, keeps, b"NULL")
            for name, kind, cost, part, (_, numbers), keeps in zip(
                names, layout.kinds, costs, layout.parts, words, layout.keeps, strict=True
            )
        ]

    def read(self, answers: Sequence[tuple[int, Sequence[int]]], now: int, sent: int) -> None:
        """What is charged only makes a cached refusal last longer."""

    def fail(self, error: BaseException) -> None:
        self.has_failed = True
        if getattr(error, "charged", None) is False:
            self.owe(self.layout, self.key, self.costs)
        self.future.set_exception(error)


AnyRequest = RowsRequest | ChargedRows


def parameters(requests: Sequence[AnyRequest], given: int | None, patience: int) -> list[bytes | None]:
    """The parameters of one statement for all these requests; ``patience`` is in milliseconds.

    They are those of ``check_1`` for a single check of one limit, else of ``decide_1``.
    """
    given_time = None if given is None else b"%d" % given
    if len(requests) == 1 and len(requests[0].rows) == 1:
        ((mark, name, kind, cost, numbers, keeps, _),) = requests[0].rows
        if mark == "c":
            return [b"\\x" + name.encode(), kind.encode(), cost, b"{%b}" % numbers, keeps, given_time, b"%d" % patience]
    rows = [row for request in requests for row in request.rows]
    columns: Any = zip(*rows, strict=True)
    marks, names, kinds, costs, numbers, keeps, taken_at = columns
    keys = sorted(set(names))  # in the order in which the server locks them
    places = {name: b"%d" % place for place, name in enumerate(keys, start=1)}
    return [
        "".join(marks).encode(),
        b"{%b}" % b",".join([places[name] for name in names]),
        "".join(kinds).encode(),
        b"{%b}" % b",".join(costs),
        b"{%b}" % b",".join(numbers),
        b"{%b}" % b",".join(keeps),
        b"{%b}" % b",".join(taken_at),
        b'{"\\\\x%b"}' % '","\\\\x'.join(keys).encode(),
        given_time,
        b"%d" % patience,
    ]


def answers_of(reply: bytes, requests: Sequence[AnyRequest]) -> tuple[int, list[list[tuple[int, list[int]]]]]:
    """The server's time, and for each request its rows; raises ValueError if it is no reply to them."""
    numbers = [int(word) for word in reply[1:-1].split(b",")]
    at, answers = 1, []
    for request in requests:
        rows = []
        for _ in request.rows:
            end = at + 2 + numbers[at + 1]
            rows.append((numbers[at], numbers[at + 2 : end]))
            at = end
        answers.append(rows)
    if at != len(numbers):
        raise ValueError(f"{len(numbers)} numbers for {at}")
    return numbers[0], answers

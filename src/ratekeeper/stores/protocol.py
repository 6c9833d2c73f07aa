"""The one face of every store.

A store that lives in this process answers at once: its methods return their results, and ``check_now`` is ``check``.
One that lives elsewhere has to be asked: its methods block (RedisStore) or return awaitables (AsyncRedisStore), and
``check_now`` answers only what is known here already: a cached refusal, a prefetched quota, or the fallback while the
store is known to be away.

A table and a prepared plan never raise StoreUnavailable: if the store cannot answer, its fallback does.  The plain
methods of a store do raise it; ``flow.settle.ask`` catches it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from typing import Protocol, TypeVar

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit, LimitSet, State

    Row = tuple[str, Limit | LimitSet, int, str | None]  # of a prepared plan: space, limit, cost, on_store_error
    Answer = tuple[bool, tuple[Decision, ...]]  # whether a plan was admitted, and the decision of each row

    class CheckNow(Protocol):
        def check_now(self, key: Key, cost: int = 1) -> Decision | None:
            """Take ``cost`` if that can be decided without asking the store; None: it must be asked."""

    class Table(CheckNow, Protocol):
        """One limit in one space."""

        def check(self, key: Key, cost: int = 1) -> Decision:
            """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""

    class AsyncTable(CheckNow, Protocol):
        """The same for event loops."""

        def check(self, key: Key, cost: int = 1) -> Awaitable[Decision]: ...

    class CheckPlanNow(Protocol):
        def check_now(self, keys: tuple[Key, ...]) -> Answer | None:
            """Take every cost, or none, if that can be decided without asking the store; None: it must be asked."""

    class PreparedPlan(CheckPlanNow, Protocol):
        """Several limits, decided all or nothing, that only wait for a key each, as callers name them."""

        def check(self, keys: tuple[Key, ...]) -> Answer:
            """Take every cost for its key, or none."""

    class AsyncPreparedPlan(CheckPlanNow, Protocol):
        """The same for event loops."""

        def check(self, keys: tuple[Key, ...]) -> Answer | Awaitable[Answer]:
            """Take every cost for its key, or none: the answer if it is known here, else an awaitable of it."""

    AnyTable = TypeVar("AnyTable", bound=CheckNow, covariant=True)
    AnyPlan = TypeVar("AnyPlan", bound=CheckPlanNow, covariant=True)

    class AnyStore(Protocol[AnyTable, AnyPlan]):
        """What stores that answer and stores that are awaited have in common."""

        @property
        def blocking(self) -> bool:
            """Whether a method may have to wait for another process."""

        @property
        def clock(self) -> Clock: ...

        def table(
            self,
            space: str,
            limit: Limit | LimitSet,
            on_store_error: str | None = None,
            *,
            prefetch: str | int | None = None,
            strict: bool = False,
        ) -> AnyTable:
            """The states of one limit.

            ``prefetch`` is how much quota a remote store prefetches.  ``strict`` refuses a shared table that other
            processes have with another limit.  A store that does neither ignores them.
            """

        def prepare(self, rows: tuple[Row, ...]) -> AnyPlan:
            """A plan that waits for keys: ``prepare(rows).check(keys)``."""

        def release(self, space: str, limit: Limit | LimitSet) -> bool:
            """Let go of what this process has of the states that ``limit`` reads; whether they are gone."""

    class Store(AnyStore[Table, PreparedPlan], Protocol):
        """A store that answers: in this process, or elsewhere and for threads."""

        def check(self, plan: Plan) -> tuple[Decision, ...]: ...
        def peek(self, plan: Plan) -> tuple[Decision, ...]: ...
        def take(self, plan: Plan) -> tuple[Decision, ...]: ...
        def debit(self, plan: Plan) -> tuple[Decision, ...]: ...
        def refund(self, plan: Plan, at: int | None = None) -> tuple[Decision, ...]: ...
        def renew(self, plan: Plan) -> Sequence[object]:
            """Hold each lease of the plan, by itself, from now on: whether it is held; None: that is not known."""

        def end_leases(self, plan: Plan) -> tuple[Decision, ...]:
            """Let each lease of the plan keep only ``cost`` places; decisions if the plan has one check."""

        def reset(self, plan: Plan) -> None: ...
        def states(self, plan: Plan) -> tuple[tuple[int, ...], tuple[State, ...]]:
            """The instant and the state of each check: limits in this process follow one of two clocks."""

        def close(self) -> None: ...

    class AsyncStore(AnyStore[AsyncTable, AsyncPreparedPlan], Protocol):
        """The same for event loops: its answers are awaited."""

        def check(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]: ...
        def peek(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]: ...
        def take(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]: ...
        def debit(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]: ...
        def refund(self, plan: Plan, at: int | None = None) -> Awaitable[tuple[Decision, ...]]: ...
        def renew(self, plan: Plan) -> Awaitable[Sequence[object]]: ...
        def end_leases(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]: ...
        def reset(self, plan: Plan) -> Awaitable[None]: ...
        def states(self, plan: Plan) -> Awaitable[tuple[tuple[int, ...], tuple[State, ...]]]: ...
        def close(self) -> Awaitable[None]: ...

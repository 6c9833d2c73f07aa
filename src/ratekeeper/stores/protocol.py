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
    from collections.abc import Awaitable
    from typing import Any, Protocol

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit, LimitSet, State

    Row = tuple[str, Limit | LimitSet, int, str | None]  # of a prepared plan: space, limit, cost, on_store_error
    Answer = tuple[bool, tuple[Decision, ...]]  # whether a plan was admitted, and the decision of each row

    class Table(Protocol):
        """One limit in one space."""

        def check_now(self, key: Key, cost: int = 1) -> Decision | None:
            """Take ``cost`` if that can be decided without asking the store; None: it must be asked."""

        def check(self, key: Key, cost: int = 1) -> Decision | Awaitable[Decision]:
            """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""

    class PreparedPlan(Protocol):
        """Several limits, decided all or nothing, that only wait for a key each; encoded keys are text or bytes."""

        def check_now(self, keys: tuple[str | bytes, ...]) -> Answer | None: ...
        def check(self, keys: tuple[str | bytes, ...]) -> Answer | Awaitable[Answer]: ...

    class Store(Protocol):
        blocking: bool  # whether a method may have to wait for another process
        clock: Clock

        def check(self, plan: Plan) -> tuple[Decision, ...]: ...
        def peek(self, plan: Plan) -> tuple[Decision, ...]: ...
        def take(self, plan: Plan) -> tuple[Decision, ...]: ...
        def refund(self, plan: Plan, at: int | None = None) -> tuple[Decision, ...]: ...
        def reset(self, plan: Plan) -> None: ...
        def states(self, plan: Plan) -> tuple[int, tuple[State, ...]]: ...
        def table(self, space: str, limit: Limit | LimitSet, on_store_error: str | None = None) -> Any: ...
        def table_for(self, space: str, limit: Limit | LimitSet, on_store_error: str | None = None) -> Any: ...
        def prepare(self, rows: tuple[Row, ...]) -> Any: ...
        def release(self, space: str, limit: Limit | LimitSet) -> bool: ...
        def close(self) -> None: ...

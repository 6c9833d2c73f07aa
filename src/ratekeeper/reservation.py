"""What was taken in advance: settled once for what was really used, or a lease that is held, renewed and given back."""

from __future__ import annotations

from ratekeeper.check import whole_cost
from ratekeeper.errors import AlreadySettled, InvalidInput, LimitExceeded
from ratekeeper.flow.acquire import acquire
from ratekeeper.flow.drive import adrive, drive
from ratekeeper.flow.settle import renew, settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType
    from typing import Any

    from ratekeeper.check import Check
    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow
    from ratekeeper.flow.heartbeat import Heartbeat
    from ratekeeper.limiter import AsyncLimiter, Limiter


class Reservation:
    """``cost`` taken in advance.  Settle it once, for what was really used; left alone, it stays as taken."""

    def __init__(self, limiter: Limiter, check: Check, decision: Decision) -> None:
        self.limiter = limiter
        self.taken = check
        self.decision = decision
        self.settled = not decision.allowed

    def settle(self, actual: int) -> Decision:
        """Give back what was not used, or charge what was used above the reservation, as far as it is there."""
        flow = self.settlement(actual)
        return drive(flow, self.limiter.store, self.limiter.clock, self.limiter.lines)

    def settlement(self, actual: int) -> Flow[Decision]:
        actual = whole_cost(actual, least=0)
        if self.settled:
            why = "was settled already" if self.decision.allowed else "was refused: there is nothing to settle"
            raise AlreadySettled(f"reservation: expected to be settled once, but it {why}.")
        self.settled = True
        return settle(self.taken, self.decision, actual)

    def renew(self) -> Decision:
        """Let the lease begin anew, so that it ends one period from now; refused if it had ended and others have it."""
        return self.renewed(drive(self.renewal(), self.limiter.store, self.limiter.clock, self.limiter.lines))

    def renewal(self) -> Flow[Decision]:
        if not self.taken.limit.is_leased:
            raise InvalidInput(
                f"renew: expected a lease, of a limit such as '20 concurrent', got '{self.taken.limit}'. "
                "What a rate has admitted does not end."
            )
        if self.settled:
            raise AlreadySettled("renew: expected a lease that is held, but it was given back or refused.")
        return renew(self.taken, self.decision, getattr(self.limiter.store, "has_room", True))

    def renewed(self, decision: Decision) -> Decision:
        if decision:
            self.decision = decision
        else:
            self.settled = True  # nothing is left to give back
        return decision

    def __bool__(self) -> bool:
        return self.decision.allowed

    def __enter__(self) -> Reservation:
        if not self.decision.allowed:
            raise LimitExceeded(self.decision, self.limiter.name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if not self.settled and (kind is not None or self.taken.limit.is_leased):
            self.settle(0)


class AsyncReservation(Reservation):
    """A reservation on an event loop: await it, or enter it with ``async with``."""

    heartbeat: Heartbeat | None = None

    def __init__(self, limiter: AsyncLimiter, check: Check, patience: int | None, priority: int) -> None:
        self.limiter = limiter  # type: ignore[assignment]
        self.taken = check
        self.patience = patience
        self.priority = priority
        self.settled = True  # nothing is taken yet

    async def take(self) -> AsyncReservation:
        limiter = self.limiter
        if self.patience is None:
            self.decision = await limiter.ask("check", self.taken)  # type: ignore[misc]
        else:
            flow = acquire(limiter.lines, self.taken, self.patience, limiter.clock, self.priority)
            self.decision = await adrive(flow, limiter.store, limiter.clock, limiter.lines)
        self.settled = not self.decision.allowed
        return self

    def __await__(self) -> Generator[Any, None, AsyncReservation]:
        return self.take().__await__()

    async def settle(self, actual: int) -> Decision:  # type: ignore[override]
        """Give back what was not used, or charge what was used above the reservation, as far as it is there."""
        flow = self.settlement(actual)
        return await adrive(flow, self.limiter.store, self.limiter.clock, self.limiter.lines)

    async def renew(self) -> Decision:  # type: ignore[override]
        """Let the lease begin anew, so that it ends one period from now; ``async with`` does it by itself."""
        limiter = self.limiter
        return self.renewed(await adrive(self.renewal(), limiter.store, limiter.clock, limiter.lines))

    async def __aenter__(self) -> AsyncReservation:
        await self.take()
        self.__enter__()
        if self.taken.limit.is_leased:
            from ratekeeper.flow.heartbeat import Heartbeat

            self.heartbeat = Heartbeat(self.taken.limit.micros, self.keep)  # type: ignore[union-attr]
        return self

    async def keep(self) -> None:
        if not self.settled:
            await self.renew()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self.heartbeat is not None:
            await self.heartbeat.stop()
        if not self.settled and (kind is not None or self.taken.limit.is_leased):
            await self.settle(0)

"""Reservations: cost taken in advance and settled later, or a lease that is held, renewed and given back."""

from __future__ import annotations

from ratekeeper.check import to_cost
from ratekeeper.errors import AlreadySettled, InvalidInput, LimitExceeded
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


class AnyReservation:
    """What Reservation and AsyncReservation share: the decision, and whether it is still to be settled."""

    decision: Decision
    settled: bool  # also if nothing was taken

    def __init__(self, limiter: Limiter | AsyncLimiter, check: Check) -> None:
        self._limiter = limiter
        self._check = check

    def __bool__(self) -> bool:
        return self.decision.allowed

    def _settlement(self, actual: int) -> Flow[Decision]:
        actual = to_cost(actual, least=0)
        if self.settled:
            why = "was settled already" if self.decision.allowed else "was refused: there is nothing to settle"
            raise AlreadySettled(f"reservation: expected to be settled once, but it {why}.")
        self.settled = True
        return settle(self._check, self.decision, actual)

    def _renewal(self) -> Flow[Decision]:
        if not self._check.limit.is_leased:
            raise InvalidInput(
                f"renew: expected a lease, of a limit such as '20 concurrent', got '{self._check.limit}'. "
                "What a rate has admitted does not end."
            )
        if self.settled:
            raise AlreadySettled("renew: expected a lease that is held, but it was given back or refused.")
        return renew(self._check, self.decision, getattr(self._limiter.store, "has_room", True))

    def _renewed(self, decision: Decision) -> Decision:
        if decision:
            self.decision = decision
        else:
            self.settled = True  # nothing is left to give back
        return decision

    def _expect_allowed(self) -> None:
        if not self.decision.allowed:
            raise LimitExceeded(self.decision, self._limiter.name)

    def _is_to_give_back(self, error: type[BaseException] | None) -> bool:
        """Whether the end of the block gives everything back: after an exception, and always for a lease."""
        return not self.settled and (error is not None or self._check.limit.is_leased)


class Reservation(AnyReservation):
    """What ``reserve`` returns: ``cost`` taken in advance; true if it was admitted.

    Settle it once, for what was really used; unsettled, it stays as taken.  ``decision`` is the limiter's answer, and
    ``settled`` is true once there is nothing left to settle.
    """

    def __init__(self, limiter: Limiter, check: Check, decision: Decision) -> None:
        super().__init__(limiter, check)
        self.decision = decision
        self.settled = not decision.allowed
        self._flows = limiter._flows()

    def settle(self, actual: int) -> Decision:
        """Give back what was not used, or charge the excess, but never below zero."""
        return self._flows.run(self._settlement(actual))

    def renew(self) -> Decision:
        """Restart the period of the lease; refused if it had ended and others have taken its place."""
        return self._renewed(self._flows.run(self._renewal()))

    def __enter__(self) -> Reservation:
        self._expect_allowed()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._is_to_give_back(kind):
            self.settle(0)


class AsyncReservation(AnyReservation):
    """A reservation on an event loop: await it, or enter it with ``async with``, which renews a lease by itself."""

    _heartbeat: Heartbeat | None = None

    def __init__(self, limiter: AsyncLimiter, check: Check, patience: int | None, priority: int) -> None:
        super().__init__(limiter, check)
        self._patience = patience
        self._priority = priority
        self._flows = limiter._flows()
        self.settled = True  # nothing is taken yet

    async def _take(self) -> AsyncReservation:
        if self._patience is None:
            self.decision = await self._flows.ask("check", self._check)
        else:
            self.decision = await self._flows.acquire(self._check, self._patience, self._priority)
        self.settled = not self.decision.allowed
        return self

    def __await__(self) -> Generator[Any, None, AsyncReservation]:
        return self._take().__await__()

    async def settle(self, actual: int) -> Decision:
        """Give back what was not used, or charge the excess, but never below zero."""
        return await self._flows.run(self._settlement(actual))

    async def renew(self) -> Decision:
        """Restart the period of the lease; refused if it had ended and others have taken its place."""
        return self._renewed(await self._flows.run(self._renewal()))

    async def __aenter__(self) -> AsyncReservation:
        await self._take()
        self._expect_allowed()
        if self._check.limit.is_leased:
            from ratekeeper.flow.heartbeat import Heartbeat

            self._heartbeat = Heartbeat(self._check.limit.micros, self._keep)  # type: ignore[union-attr]
        return self

    async def _keep(self) -> None:
        if not self.settled:
            await self.renew()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        if self._is_to_give_back(kind):
            await self.settle(0)

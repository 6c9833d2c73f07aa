"""Reservations: cost taken in advance and settled later, or a lease that is held, renewed and given back."""

from __future__ import annotations

from ratekeeper.awaitable import awaited, refuse_use
from ratekeeper.check import to_cost
from ratekeeper.errors import AlreadySettled, InvalidInput, LimitExceeded
from ratekeeper.event_loop import shielded
from ratekeeper.flow.lease_renewal import renewer_of
from ratekeeper.flow.settle import renew, settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType
    from typing import Any

    from ratekeeper.check import Check, LeaseCheck
    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow
    from ratekeeper.flow.heartbeat import Heartbeat
    from ratekeeper.limiter import AsyncLimiter, Limiter


class AnyReservation:
    """What Reservation and AsyncReservation share: the decision, and whether it is still to be settled."""

    decision: Decision
    _settled: bool  # also if nothing was taken

    def __init__(self, limiter: Limiter | AsyncLimiter, check: Check) -> None:
        self._limiter = limiter
        self._check = check
        self._renewer = renewer_of(limiter.store) if check.lease else None

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to settle: also if a lease ended, and others have its place."""
        return self._settled or self._is_lost()

    def _is_lost(self) -> bool:
        """Whether the lease ended before it was given back."""
        renewer, decision = self._renewer, self.decision
        return renewer is not None and decision.allowed and not decision.reason and not renewer.has(self._check)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return self.decision.allowed

    def _settlement(self, actual: int) -> Flow[Decision]:
        actual = to_cost(actual, least=0)
        if self._settled:
            why = "was settled already" if self.decision.allowed else "was refused: there is nothing to settle"
            raise AlreadySettled(f"reservation: expected to be settled once, but it {why}.")
        self._settled = True
        return settle(self._check, self.decision, actual, self._renewer)

    def _renewal(self) -> Flow[tuple[LeaseCheck, Decision]]:
        if not self._check.limit.is_leased:
            raise InvalidInput(
                f"renew: expected a lease, of a limit such as '20 concurrent', got '{self._check.limit}'. "
                "What a rate has admitted does not end."
            )
        if self._settled:
            raise AlreadySettled("renew: expected a lease that is held, but it was given back or refused.")
        return renew(self._check, self.decision, self._renewer)  # type: ignore[arg-type]

    def _renewed(self, renewal: tuple[LeaseCheck, Decision]) -> Decision:
        check, decision = renewal
        if decision:
            self._check, self.decision = check, decision
        else:
            self._settled = True  # nothing is left to give back
        return decision

    def _expect_allowed(self) -> None:
        if not self.decision.allowed:
            raise LimitExceeded(self.decision, self._limiter.name, self._limiter.limits)

    def _is_to_give_back(self, error: type[BaseException] | None) -> bool:
        """Whether the end of the block gives everything back: after an exception, and always for a lease."""
        return not self._settled and (error is not None or self._check.limit.is_leased)


class Reservation(AnyReservation):
    """What ``reserve`` returns: ``cost`` taken in advance; true if it was admitted.

    Settle it once, for what was really used; unsettled, it stays as taken.  ``decision`` is the limiter's answer, and
    ``settled`` is true once there is nothing left to settle.
    """

    def __init__(self, limiter: Limiter, check: Check, decision: Decision) -> None:
        super().__init__(limiter, check)
        self.decision = decision
        self._settled = not decision.allowed
        self._flows = limiter._flows()

    def settle(self, actual: int) -> Decision:
        """Give back what was not used, or charge the excess: all of it, so that the key may be in debt."""
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
        self._settled = True  # nothing is taken yet

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name == "decision":  # which __bool__ reads too
                refuse_use("AsyncLimiter.reserve", "the reservation")
            raise AttributeError(f"'AsyncReservation' object has no attribute {name!r}")

        def __enter__(self):
            refuse_use("AsyncLimiter.reserve", "'with'", "Write: async with limiter.reserve(…).")

        __exit__ = __enter__

    async def _take(self) -> AsyncReservation:
        if self._patience is None:
            ask = self._flows.hold(self._check) if self._check.lease else self._flows.ask("check", self._check)
            self.decision = await ask
        else:
            self.decision = await self._flows.acquire(self._check, self._patience, self._priority)
        self._settled = not self.decision.allowed
        return self

    def __await__(self) -> Generator[Any, None, AsyncReservation]:
        return self._take().__await__()

    @awaited
    async def settle(self, actual: int) -> Decision:
        """Give back what was not used, or charge the excess: all of it, so that the key may be in debt."""
        return await self._flows.run(self._settlement(actual))

    @awaited
    async def renew(self) -> Decision:
        """Restart the period of the lease; refused if it had ended and others have taken its place."""
        return self._renewed(await self._flows.run(self._renewal()))

    async def __aenter__(self) -> AsyncReservation:
        await self._take()
        self._expect_allowed()
        if self._renewer is not None and not self.decision.reason:
            self._renewer.keep_for_ever(self._check)  # type: ignore[arg-type]
        elif self._check.limit.is_leased:
            from ratekeeper.flow.heartbeat import Heartbeat

            self._heartbeat = Heartbeat(self._check.limit.micros, self._keep)  # type: ignore[union-attr]
        return self

    async def _keep(self) -> None:
        if not self.settled:
            await self.renew()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with shielded():
            if self._heartbeat is not None:
                await self._heartbeat.stop()
            if self._is_to_give_back(kind):
                await self.settle(0)

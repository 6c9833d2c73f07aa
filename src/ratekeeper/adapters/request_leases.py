"""What one ASGI request holds: leases are renewed while it is answered, and given back when it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.flow.heartbeat import Heartbeat
from ratekeeper.http.verdict import HttpVerdict

if TYPE_CHECKING:
    from ratekeeper.decision import Decision
    from ratekeeper.rules.counter import TierLimit
    from ratekeeper.rules.policy import Policy


class RequestLeases:
    """``async with Held(policy, verdict)``: for as long as the block lasts, all that ``verdict`` holds is held.

    It keeps answers of its own: limits at routes may join theirs to those of the verdict.
    """

    __slots__ = ("heartbeat", "policy", "verdict")

    def __init__(self, policy: Policy, verdict: HttpVerdict) -> None:
        self.policy = policy
        self.verdict = HttpVerdict(verdict.request, verdict.response, verdict.answers)
        self.heartbeat: Heartbeat | None = None

    async def __aenter__(self) -> None:
        lives = [entry.limit.micros for entry, _ in self.verdict.answers if entry.limit.is_leased]  # type: ignore[union-attr]
        if lives:
            self.heartbeat = Heartbeat(min(lives), self.renew)

    async def renew(self) -> None:
        await self.policy.arenew(self.verdict)

    async def __aexit__(self, *error: object) -> None:
        if self.heartbeat is not None:
            await self.heartbeat.stop()
            await self.policy.arelease(self.verdict)


async def rates_back(policy: Policy, verdict: HttpVerdict, answers: tuple[tuple[TierLimit, Decision], ...]) -> None:
    """Give back what these answers took, but for leases: those are given back where they are held."""
    rates = tuple([(entry, decision) for entry, decision in answers if not entry.limit.is_leased])
    await policy.agive_back(HttpVerdict(verdict.request, verdict.response, rates))

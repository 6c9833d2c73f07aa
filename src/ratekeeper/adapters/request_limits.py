"""What one request has met so far: the rules file first, then the limits that stand at its route.

Each is decided by itself, and still they hold together: what one refuses, those before it get back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ratekeeper.http.verdict import HttpVerdict, VerdictNotes
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy

    Gone = Callable[[], bool] | None

DECIDED = "ratekeeper.decided"  # where adapters keep it, in an environ or a request


class RequestLimits:
    """The verdicts on one request, told as one.  ``teller`` is whoever writes them into the response."""

    __slots__ = ("admitted", "is_done", "refusal", "teller")

    def __init__(self, teller: object = None) -> None:
        self.admitted: list[tuple[Policy, HttpVerdict]] = []
        self.refusal: HttpVerdict | None = None
        self.teller = teller
        self.is_done = False

    def check(self, policy: Policy, request: Request, is_gone: Gone = None) -> HttpVerdict | None:
        """The refusal of ``policy``, None if it admits the request; waits for its turn where that is later.

        A caller that ``is_gone`` by then gives its place back; ConnectionAbortedError says so.
        """
        verdict = policy.check(request)
        if not verdict.allowed:
            self.give_back()
            self.refusal = verdict
            return verdict
        self.admitted.append((policy, verdict))
        if policy.delays and verdict.delay:
            try:
                policy.clock.sleep(round(verdict.delay * SECOND))
                if is_gone is not None and is_gone():
                    raise ConnectionAbortedError
            except BaseException:
                self.give_back()
                raise
        return None

    async def acheck(self, policy: Policy, request: Request, is_gone: Gone = None) -> HttpVerdict | None:
        """``check`` for an event loop; a caller that left raises CancelledError."""
        verdict = await policy.acheck(request) if policy.blocking else policy.check(request)
        if not verdict.allowed:
            await self.agive_back()
            self.refusal = verdict
            return verdict
        self.admitted.append((policy, verdict))
        if policy.delays and verdict.delay:
            try:
                await policy.clock.asleep(round(verdict.delay * SECOND))
                if is_gone is not None and is_gone():
                    raise asyncio.CancelledError
            except BaseException:
                await self.agive_back()
                raise
        return None

    @property
    def leases(self) -> bool:
        """Whether something is held that must end with the response."""
        return not self.is_done and any(policy.leases for policy, _ in self.admitted)

    def release(self) -> None:
        """End the leases of what was admitted: the response is done."""
        if self.leases:
            self.is_done = True
            for policy, verdict in self.admitted:
                policy.release(verdict)

    async def arelease(self) -> None:
        """``release`` for an event loop."""
        if self.leases:
            self.is_done = True
            for policy, verdict in self.admitted:
                await policy.arelease(verdict)

    def give_back(self) -> None:
        while self.admitted:
            policy, verdict = self.admitted.pop()
            policy.give_back(verdict)

    async def agive_back(self) -> None:
        while self.admitted:
            policy, verdict = self.admitted.pop()
            await policy.agive_back(verdict)

    @property
    def verdict(self) -> HttpVerdict | None:
        """The refusal, else all that was admitted in one; None if nothing was asked."""
        if self.refusal is not None or not self.admitted:
            return self.refusal
        first = self.admitted[0][1]
        if len(self.admitted) == 1:
            return first
        answers = tuple([answer for _, own in self.admitted for answer in own.answers])
        graced = tuple([name for _, own in self.admitted for name in own.notes.graced])
        return HttpVerdict(first.request, first.response, answers, "", VerdictNotes(graced=graced))

    @property
    def fields(self) -> list[tuple[str, str]]:
        """For the response, as text; names in lower case."""
        verdict = self.verdict
        if verdict is None:
            return []
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in verdict.headers]

    @property
    def added(self) -> list[tuple[str, str]]:
        """``fields`` for a response that says itself what its body is."""
        return [field for field in self.fields if field[0] != "content-type"]

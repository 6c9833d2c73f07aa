"""The limits of one request: the application's policy first, then the limits on its route.

Each policy decides by itself, but a refused request is charged to none of them: a refusal gives back what the earlier
verdicts took.
"""

from __future__ import annotations

import asyncio
from functools import reduce
from operator import itemgetter
from typing import TYPE_CHECKING

from ratekeeper.flow.heartbeat import Heartbeat
from ratekeeper.http.verdict import HttpVerdict, VerdictNotes
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from typing import Any

    from ratekeeper.adapters.route_limit import RouteLimit
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy

    HasLeft = Callable[[], bool] | None

MERGED = ("vary", "access-control-expose-headers")  # lists, which both sides may add to
NAME = itemgetter(0)  # of a header field
LIMITS = "ratekeeper.limits"  # the key of a RequestLimits in an ASGI scope, a WSGI environ or an aiohttp request


class RequestLimits:
    """The verdicts on one request, and the one verdict that the response shows.

    ``policy`` and ``facts`` are the application's, for the limits on a route to inherit.  ``header_writer`` is the
    adapter that adds the headers to the response, as several adapters may meet in one request.
    """

    __slots__ = (
        "admitted", "facts", "first", "header_writer", "is_exempt", "leases", "places", "policy", "refusal", "reserves",
        "verdict",
    )  # fmt: skip

    def __init__(
        self, header_writer: object = None, policy: Policy | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        self.header_writer = header_writer
        self.policy = policy
        self.facts = facts
        self.is_exempt = False  # from every limit, also those on its route
        self.first: HttpVerdict | None = None  # of the ASGI middleware, which learns from it what to show instead
        self.admitted: tuple[tuple[Policy, HttpVerdict], ...] = ()
        self.leases: tuple[RequestLease, ...] = ()
        self.reserves = False  # whether a verdict waits for the response, which says if the request counts
        self.refusal: HttpVerdict | None = None
        self.places: dict[str, int] = {}  # how many limits without a name were checked, by their identity
        self.verdict: HttpVerdict | None = None  # the refusal, else all admitting verdicts as one

    def policy_of(self, route_limit: RouteLimit, main: Policy | None) -> Policy:
        """Return the policy of a limit on the route of this request; equal ones are told apart by their order."""
        if route_limit.is_named:
            return route_limit.policy(main)
        place = self.places.get(route_limit.space, 0)
        self.places[route_limit.space] = place + 1
        return route_limit.policy(main, place)

    def check(self, policy: Policy, request: Request, has_left: HasLeft = None) -> HttpVerdict:
        """Return the verdict of ``policy``, after waiting for the turn that a leaky bucket gave.

        If the client ``has_left`` by then, give everything back and raise ConnectionAbortedError.
        """
        verdict = policy.check(request)
        if not verdict.allowed:
            self.give_back()
            self.refuse(verdict)
            return verdict
        self.admit(policy, verdict)
        if policy.delays and verdict.delay:
            try:
                policy.clock.sleep(round(verdict.delay * SECOND))
                if has_left is not None and has_left():
                    raise ConnectionAbortedError
            except BaseException:
                self.give_back()
                raise
        return verdict

    async def acheck(self, policy: Policy, request: Request, has_left: HasLeft = None) -> HttpVerdict:
        """``check`` for an event loop; if the client has left, raise CancelledError."""
        verdict: Any = policy.answer(request)
        if verdict.__class__ is not HttpVerdict:  # an awaitable: the store must be asked
            verdict = await verdict
        if not verdict.allowed:
            await self.agive_back()
            self.refuse(verdict)
            return verdict
        self.admit(policy, verdict)
        if policy.delays and verdict.delay:
            try:
                await policy.clock.asleep(round(verdict.delay * SECOND))
                if has_left is not None and has_left():
                    raise asyncio.CancelledError
            except BaseException:
                await self.agive_back()
                raise
        return verdict

    def admit(self, policy: Policy, verdict: HttpVerdict) -> None:
        self.admitted += ((policy, verdict),)
        if policy.settles and verdict.notes.reserved:
            self.reserves = True
        if policy.leases:
            self.leases += (RequestLease(policy, verdict),)
        if self.refusal is None:
            self.verdict = verdict if self.verdict is None else combined(self.verdict, verdict)
            if self.first is not None:
                self.first.replaced_by = self.verdict

    def refuse(self, verdict: HttpVerdict) -> None:
        self.refusal = self.verdict = verdict
        if self.first is not None:
            self.first.replaced_by = verdict

    def give_back(self) -> None:
        """Give back what the admitting verdicts took, leases included."""
        admitted, self.admitted, self.leases = self.admitted, (), ()
        for policy, verdict in admitted:
            policy.give_back(verdict)

    async def agive_back(self) -> None:
        """``give_back`` for an event loop."""
        admitted, leases, self.admitted, self.leases = self.admitted, self.leases, (), ()
        for lease in leases:
            await lease.stop_renewal()
        for policy, verdict in admitted:
            await policy.agive_back(verdict)

    @property
    def limited(self) -> bool:
        """Whether a limit refused the request, or would have refused it: in shadow and by grace it goes on."""
        return self.verdict is not None and self.verdict.limited

    def settle(self, status: int, response: Any = None) -> None:
        """Give back what limits took whose ``count_when`` does not hold for the response.  Then show what is left."""
        if self.reserves:
            self.reserves = False
            for policy, verdict in self.admitted:
                policy.settle(verdict, status, response)
            self.show_again()

    async def asettle(self, status: int, response: Any = None) -> None:
        """``settle`` for an event loop."""
        if self.reserves:
            self.reserves = False
            for policy, verdict in self.admitted:
                await policy.asettle(verdict, status, response)
            self.show_again()

    def show_again(self) -> None:
        """Let the response show the verdicts as they are now."""
        if self.refusal is None and self.admitted:
            verdicts = [verdict for _, verdict in self.admitted]
            self.verdict = reduce(combined, verdicts)
            if self.first is not None and self.verdict is not self.first:
                self.first.replaced_by = self.verdict

    def release(self) -> None:
        """End all leases: the response is done.  A second call does nothing."""
        leases, self.leases = self.leases, ()
        for lease in leases:
            lease.policy.release(lease.verdict)

    async def arelease(self, lease: RequestLease | None = None) -> None:
        """End one lease, or all of them, on an event loop.  A second call does nothing."""
        ending = [each for each in self.leases if lease is None or each is lease]  # none if a refusal gave it back
        self.leases = tuple([each for each in self.leases if each not in ending])
        for each in ending:
            await each.stop_renewal()
            await each.policy.arelease(each.verdict)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header fields of the response as text; names in lower case."""
        if self.verdict is None:
            return []
        return self.verdict.text_headers

    def headers_beside(self, present: Container[str]) -> list[tuple[str, str]]:
        """``headers`` for a response with a body and headers of its own: those that are ``present`` stay alone."""
        verdict = self.verdict
        if verdict is None:
            return []
        fields = verdict.text_headers
        is_refusal = not verdict.allowed
        if not is_refusal and not any(map(present.__contains__, map(NAME, fields))):  # most responses
            return fields
        return [
            field
            for field in fields
            if field[0] in MERGED or not (field[0] in present or (is_refusal and field[0] == "content-type"))
        ]


class RequestLease:
    """The concurrency slots that a verdict holds until the response is done."""

    __slots__ = ("heartbeat", "policy", "verdict")

    def __init__(self, policy: Policy, verdict: HttpVerdict) -> None:
        self.policy = policy
        self.verdict = verdict
        self.heartbeat: Heartbeat | None = None

    def start_renewal(self) -> None:
        """Renew the slots on the running event loop, so that a long response keeps them."""
        lives = [entry.limit.micros for entry, _ in self.verdict.answers if entry.limit.is_leased]  # type: ignore[union-attr]
        if lives and not self.policy.compiled.keep_leases(self.verdict):
            self.heartbeat = Heartbeat(min(lives), self.renew)

    async def renew(self) -> None:
        await self.policy.arenew(self.verdict)

    async def stop_renewal(self) -> None:
        if self.heartbeat is not None:
            await self.heartbeat.stop()


def combined(first: HttpVerdict, second: HttpVerdict) -> HttpVerdict:
    """Two verdicts that admit the same request, as one."""
    notes = VerdictNotes(
        graced=first.notes.graced + second.notes.graced,
        shadow=first.notes.shadow + second.notes.shadow,
        unenforced=first.notes.unenforced + second.notes.unenforced,
    )
    return HttpVerdict(first.request, first.response, first.answers + second.answers, "", notes)

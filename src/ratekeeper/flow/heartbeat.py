"""Renews a lease for as long as its holder works: every third of the lease's period, on the holder's event loop.

It uses real time, not the limiter's clock, because the holder's work takes real time.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Task, TimerHandle
    from collections.abc import Awaitable, Callable

BEATS = 3  # in one period of a lease: two may be missed


class Heartbeat:
    """Awaits ``renew`` again and again until it is stopped."""

    __slots__ = ("beating", "loop", "renew", "seconds", "timer")

    def __init__(self, micros: int, renew: Callable[[], Awaitable[object]]) -> None:
        from ratekeeper.event_loop import running_loop

        self.seconds = micros / 1_000_000 / BEATS
        self.renew = renew
        self.loop = running_loop()
        self.beating: Task[None] | None = None
        self.timer: TimerHandle = self.loop.call_later(self.seconds, self.beat)

    def beat(self) -> None:
        self.beating = self.loop.create_task(self.once())

    async def once(self) -> None:
        await self.renew()
        self.timer = self.loop.call_later(self.seconds, self.beat)

    async def stop(self) -> None:
        """Stop renewing.  Wait for a renewal under way first, because it replaces the lease to be given back."""
        self.timer.cancel()
        if self.beating is not None and not self.beating.done():
            from asyncio import wait

            from ratekeeper.event_loop import run_on_loop

            await run_on_loop(wait([self.beating]))
            self.timer.cancel()

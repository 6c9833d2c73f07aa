"""An ASGI request waits for the turn that a leaky bucket gave it, and hears meanwhile whether its client left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from ratekeeper.adapters.asgi import Message, Receive
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.rules.policy import Policy


async def wait_turn(policy: Policy, verdict: HttpVerdict, receive: Receive) -> Receive | None:
    """Wait for the turn that a leaky bucket gave; None once the client has left, which gives its place back.

    What arrives meanwhile is kept for the application, at most one message: a body is never gathered here.
    """
    kept: list[Message] = []
    turn = asyncio.ensure_future(policy.clock.asleep(round(verdict.delay * SECOND)))
    heard = asyncio.ensure_future(receive())
    try:
        while not turn.done():
            await asyncio.wait({turn, heard}, return_when=asyncio.FIRST_COMPLETED)
            if not heard.done():
                break
            message = heard.result()
            if message["type"] in ("http.disconnect", "websocket.disconnect"):
                turn.cancel()
                await policy.agive_back(verdict)
                return None
            kept.append(message)
            if message.get("more_body") or message["type"] == "websocket.connect":
                await turn
            else:
                heard = asyncio.ensure_future(receive())
    except BaseException:
        turn.cancel()
        heard.cancel()
        await policy.agive_back(verdict)
        raise

    pending = [] if heard.done() and kept else [heard]

    async def replay() -> Message:
        if kept:
            return kept.pop(0)
        return await (pending.pop() if pending else receive())

    return replay

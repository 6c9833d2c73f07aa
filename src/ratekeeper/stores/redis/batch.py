"""Requests on the wire, and what to make of the replies: shared by threads and event loops.  No I/O.

The one rule that keeps a caller from being charged twice: a command is sent again only after a reply that says it was
not executed.  After a lost reply nobody knows, so it is never sent again.
"""

from __future__ import annotations

import logging

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.request import command

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.script import Script
    from ratekeeper.stores.redis.url import Address

log = logging.getLogger("ratekeeper.store")
MOST_TRIES = 5
PAUSE = 0.002  # seconds before a slot on the move is asked again
LAST = 0.01  # of the deadline that must be left for that: who is sent too late for an answer may have paid for it
ASKING = b"*1\r\n$6\r\nASKING\r\n"
# Replies that say "not executed", and what to do: `elsewhere` another server has the key, `again` soon, `anew` on a
# new connection, `down` the server cannot serve anybody now, `refused` this command only.
TROUBLES = {
    "NOSCRIPT": "evaluate",
    "MOVED": "elsewhere",
    "ASK": "elsewhere",
    "TRYAGAIN": "again",
    "READONLY": "anew",
    "MASTERDOWN": "anew",
    "LOADING": "down",
    "BUSY": "down",
    "CLUSTERDOWN": "down",
    "NOAUTH": "down",
    "WRONGPASS": "down",
    "NOPERM": "down",
    "NOREPLICAS": "refused",
    "MISCONF": "refused",
    "OOM": "refused",
    "CROSSSLOT": "refused",
}


class Batch:
    """One command on its way, with the requests it carries."""

    __slots__ = ("asking", "evaluate", "requests", "sent", "since", "tries")

    def __init__(self, requests: Sequence[AnyRequest], since: float) -> None:
        self.requests = requests
        self.since = since  # when the first of them was made: the deadline runs from there
        self.evaluate = False
        self.asking = False
        self.tries = 0
        self.sent = 0

    def payload(self, script: Script, clock: Clock, gives_time: bool) -> bytes:
        """The command; ``clock`` is asked when it leaves, and rules the decision if it ``gives_time``."""
        self.tries += 1
        self.sent = clock.nanos()
        now = self.sent // 1000 if gives_time else None
        name, word = (b"EVAL", script.text) if self.evaluate else (b"EVALSHA", script.sha)
        return (ASKING if self.asking else b"") + command(self.requests, name, word, now)

    def land(self, reply: Any, name: str) -> bool:
        """Hand each request its part of the reply; False if it was no reply to them, so that none after it is."""
        replies = [reply] if len(self.requests) == 1 else reply
        if not isinstance(replies, list) or len(replies) != len(self.requests):
            self.fail(StoreUnavailable(name, "answered something else than was asked", charged=None))
            return False
        understood = True
        sent = self.sent
        for request, part in zip(self.requests, replies, strict=True):
            future = request.future
            if not future.done():  # else cancelled: its answer goes nowhere, and to nobody else
                try:
                    result = request.read(part, sent)
                except Exception as error:
                    understood = False
                    why = f"answered something else than was asked ({error})"
                    request.fail(StoreUnavailable(name, why, charged=None))
                else:
                    future.set_result(result)
        return understood

    def fail(self, error: StoreUnavailable) -> None:
        for request in self.requests:
            if not request.future.done():
                request.fail(error)


def judge(batch: Batch, error: Exception, asked: Address) -> tuple[str, int, Address]:
    """What to do after an error reply: a word of TROUBLES, or ``unknown``; for ``elsewhere`` also slot and address."""
    text = str(error)
    word = text.partition(" ")[0]
    action = TROUBLES.get(word, "unknown")
    slot, place = -1, asked
    batch.asking = False
    if action == "again":
        batch.tries = 0  # a slot on the move: until the deadline, and wherever that leads
    elif action == "evaluate":
        batch.evaluate = True
    elif action == "elsewhere":
        _, index, target = text.split(" ")[:3]
        host, _, port = target.rpartition(":")
        slot, place = int(index), (host or asked[0], int(port))  # an empty host is the one that was asked
        batch.asking = word == "ASK"
    if batch.tries >= MOST_TRIES and action in ("evaluate", "elsewhere", "anew"):
        action = "down" if action == "anew" else "refused"
    return action, slot, place

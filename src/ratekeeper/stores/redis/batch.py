"""A batch of requests in one command, and what to make of its reply: shared by threads and event loops.  No I/O.

The one rule that keeps a caller from being charged twice: a command is sent again only after a reply that says it was
not executed.  If a reply was lost nobody knows whether it was executed, so the command is never sent again.
"""

from __future__ import annotations

import logging

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.request import command
from ratekeeper.stores.redis.resp import BrokenReply
from ratekeeper.stores.redis.topology import read_redirection

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.script import Script
    from ratekeeper.stores.redis.topology import SlotMap
    from ratekeeper.stores.redis.url import Address

log = logging.getLogger("ratekeeper.store")
MOST_TRIES = 5
PAUSE = 0.002  # seconds before a slot on the move is asked again
LAST = 0.01  # seconds of the deadline that must be left for that: a batch that is sent too late may be charged unheard
ASKING = b"*1\r\n$6\r\nASKING\r\n"
# Error replies that say "not executed", and what to do: ask `elsewhere`, as another server has the key; `again` soon;
# `anew` on a new connection; `down`: the server can serve no request now; `refused`: this command only.
NOT_EXECUTED = {
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
            if not future.done():  # else it was cancelled, and its answer is dropped
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


def has_written(request: AnyRequest, reply: Any) -> bool:
    """Whether a reply proves that the server executes checks that write."""
    if request.operation == "charge":
        return True
    return request.operation == "check" and reply.__class__ is bytes and bool(reply) and reply[0] < 128


class Reaction:
    """What to do about an error reply: fail the batch with ``error``, or send it again."""

    __slots__ = ("address", "down", "error", "pause", "renew")

    def __init__(
        self,
        *,
        address: Address | None = None,
        pause: float = 0.0,
        renew: bool = False,
        error: StoreUnavailable | None = None,
        down: str = "",
    ) -> None:
        self.address = address  # of the server to send it to; None: the same one
        self.pause = pause  # seconds to wait before
        self.renew = renew  # the connection, before
        self.error = error
        self.down = down  # why the server can serve no request now


def react(
    batch: Batch, reply: Exception, server: str, asked: Address, slots: SlotMap, time_left: float, is_busy: bool = False
) -> Reaction:
    """What to do about an error ``reply`` of the server called ``server``, at the address ``asked``.

    ``time_left`` is in seconds.  ``is_busy``: other batches are under way on the same connection, so it cannot be
    renewed without failing them.
    """
    text = str(reply)
    word = text.partition(" ")[0]
    action = NOT_EXECUTED.get(word, "unknown")
    batch.asking = False
    if action == "again":
        batch.tries = 0  # a slot on the move: until the deadline, and wherever that leads
        if time_left > LAST:
            return Reaction(pause=PAUSE)
    elif batch.tries < MOST_TRIES:
        if action == "evaluate":
            batch.evaluate = True
            return Reaction()
        if action == "elsewhere":
            try:
                slot, address = read_redirection(text, asked)
            except BrokenReply:  # a server that does not say where the key is cannot be asked for it
                why = f"answered {reply}"
                return Reaction(error=StoreUnavailable(server, why, charged=False), down=why)
            batch.asking = word == "ASK"
            if not batch.asking:
                slots.moved(slot, address)
            return Reaction(address=address)
        if action == "anew" and not is_busy:
            return Reaction(renew=True)
    why = f"answered {text.partition(' script: ')[0].rstrip('.')}"  # without the place in the script
    charged = None if action == "unknown" else False
    return Reaction(error=StoreUnavailable(server, why, charged), down=why if action in ("down", "anew") else "")

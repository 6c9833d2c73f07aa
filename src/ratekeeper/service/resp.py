"""The Redis door: any Redis client, in any language, can ask.

    CL.THROTTLE key max_burst count period [quantity]      answers as redis-cell does
    RK.CHECK key limit [COST n] [NAME name] [PEEK]         allowed, limit, remaining, retry_after, reset_after, delay

``RK.CHECK`` tells times in microseconds, and -1 for a retry that can never pass.  ``quantity`` 0 and ``PEEK`` take
nothing.
"""

from __future__ import annotations

import re
from heapq import nlargest
from hmac import compare_digest
from math import ceil
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hiredis import HiredisError, Reader

from ratekeeper.check import Check, whole_cost
from ratekeeper.errors import InvalidInput, RatekeeperError, StoreUnavailable, shown
from ratekeeper.keys import encode
from ratekeeper.limit import Limit
from ratekeeper.service.connection import ClientConnection, Listener, log
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ratekeeper.decision import Decision
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.options import Bounds
    from ratekeeper.stores.fallback import FallbackTable

    Words = list[bytes]
    # What CL.THROTTLE asks of a limit: its table, or its desk if it is elsewhere, and what a call takes.
    Terms = tuple[Any, FallbackTable | None, int]

SPACE = "CL.THROTTLE"
MOST_TOLD = 64  # who was refused most in a second
OK = b"+OK\r\n"
LONG = re.compile(rb"\n[*%~>|]\d{4}")  # a list so long that to make room for it would be the harm
DIGITS = re.compile(rb"\d{1,15}")


class NoCommand(HiredisError):
    """The protocol, but no list of words."""


class RespConnection(ClientConnection):
    """One Redis client."""

    door: RespListener

    def __init__(self, door: RespListener) -> None:
        super().__init__(door)
        self.reader = Reader()
        self.pending = 0  # bytes of a command that is not complete
        self.tail = b"\n"  # of what came before: a command begins behind a line
        self.is_known = door.token is None
        self.version = 2

    def busy(self) -> bytes:
        return b"-ERR max number of clients reached\r\n"

    def data_received(self, part: bytes) -> None:
        if self.is_last:
            return
        reader = self.reader
        if not self.pending and part[0] != 42:  # not a "*": somebody types
            self.inline(part)
            return
        if LONG.search(self.tail + part):
            self.refuse("expected a command of fewer words")
            return
        door = self.door
        try:
            reader.feed(part)
            done = self.answer_all(reader.gets)
        except (HiredisError, MemoryError) as error:
            self.refuse("expected a command" if isinstance(error, NoCommand) else "expected the Redis protocol")
            return
        if reader.has_data():
            self.pending = len(part) if done else self.pending + len(part)
            self.tail = (self.tail + part)[-16:]
            if done or not self.is_receiving:
                self.since = door.loop.time()
            self.is_receiving = True
            if self.pending > door.bounds.body:
                self.refuse("expected a shorter command")
                return
        else:
            self.pending = 0
            self.tail = b"\n"
            self.is_receiving = False
            self.since = door.loop.time()
        if door.waiting > door.bounds.waiting:
            self.hold()
        self.flush()

    def answer_all(self, gets: Callable[[], Any]) -> bool:
        """Answer every command that has come; says whether there was one."""
        door, queue, put = self.door, self.queue, self.ready.append
        terms_of, refused = door.terms, door.refused
        allowed = stood_in = 0
        away: str | None = None  # asked once: nothing can change before all of them are answered
        done = False
        try:
            while (words := gets()) is not False:
                done = True
                if words.__class__ is not list or not words:
                    raise NoCommand
                try:
                    # The hot path: a known limit, on a store that cannot block or is known to be away.
                    if self.is_known and (words[0] == b"CL.THROTTLE" or words[0] == b"cl.throttle"):
                        terms = terms_of.get(tuple(words[2:]))
                        decision = None
                        if terms is not None:
                            table, desk, quantity = terms
                            if table is not None:
                                decision = table.check(text_of(words[1]), quantity)
                            elif desk is not None:
                                if away is None:
                                    away = door.keeper.away()
                                if away:
                                    decision = desk.check(encode(text_of(words[1])), quantity, away)
                                    stood_in += 1
                        if decision is not None:
                            if decision.allowed:
                                allowed += 1
                            else:
                                refused[words[1]] = refused.get(words[1], 0) + 1
                            if queue:
                                self.put(throttled(decision))
                            else:
                                put(throttled(decision))
                            continue
                        found = door.throttle(words)
                    else:
                        found = self.execute(words)
                except (
                    RatekeeperError,
                    ArithmeticError,
                    UnicodeError,
                    LookupError,
                    TypeError,
                    AttributeError,
                ) as error:
                    found = failure(error)
                self.answer(found)
        finally:
            door.allowed += allowed
            door.keeper.tally.store_errors += stood_in
        return done

    def inline(self, part: bytes) -> None:
        """Commands as somebody types them, a line each."""
        if len(part) > 4096 or not part.endswith(b"\n"):
            self.refuse("expected the Redis protocol")
            return
        for line in part.splitlines():
            words = line.split()
            if words:
                try:
                    found = self.execute(words)
                except (RatekeeperError, LookupError, UnicodeError) as error:
                    found = failure(error)
                self.answer(found)
        self.flush()

    def answer(self, found: bytes | Awaitable[bytes]) -> None:
        if isinstance(found, bytes):
            self.put(found)
        else:
            self.wait(found, failure)

    def refuse(self, why: str) -> None:
        """Say what is wrong and hang up: what follows cannot be read."""
        self.is_last = self.is_receiving = True
        self.put(b"-ERR Protocol error: %b\r\n" % why.encode())
        self.flush()

    def idle(self) -> None:
        """Redis clients keep connections: only one that has not said who it is must go."""
        if not self.is_known:
            self.transport.close()

    def execute(self, words: Words) -> bytes | Awaitable[bytes]:
        if not all(word.__class__ is bytes for word in words):
            raise InvalidInput("expected a command of texts.")
        name = words[0].upper()
        if not self.is_known and name not in (b"AUTH", b"HELLO", b"QUIT"):
            return b"-NOAUTH Authentication required.\r\n"
        own = COMMANDS.get(name)
        if own is not None:
            return own(self, words)
        if name == b"CL.THROTTLE":
            return self.door.throttle(words)
        if name == b"RK.CHECK":
            return self.door.check(words)
        return b"-ERR unknown command '%b'\r\n" % plain(name.decode("latin-1")[:64])

    def authorise(self, password: bytes) -> bytes:
        token = self.door.token
        if token is None:
            return b"-ERR AUTH called without any password configured. Are you sure your configuration is correct?\r\n"
        if not compare_digest(password, token.encode()):
            return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        self.is_known = True
        return OK

    def auth(self, words: Words) -> bytes:
        if len(words) not in (2, 3):
            return wrong_number(words)
        return self.authorise(words[-1])

    def hello(self, words: Words) -> bytes:
        place, version = 2, self.version
        if len(words) > 1:
            if words[1] not in (b"2", b"3"):
                return b"-NOPROTO unsupported protocol version\r\n"
            version = int(words[1])
        while place < len(words):
            option = words[place].upper()
            if option == b"AUTH" and place + 2 < len(words):
                answer = self.authorise(words[place + 2])
                if answer is not OK:
                    return answer
                place += 3
            elif option == b"SETNAME" and place + 1 < len(words):
                place += 2
            else:
                return b"-ERR Syntax error in HELLO\r\n"
        if not self.is_known:
            return b"-NOAUTH HELLO must be called with the client already authenticated\r\n"
        self.version = version
        pairs = [(b"server", b"ratekeeper"), (b"version", b"7.0.0"), (b"proto", version), (b"id", id(self) % 2**31),
                 (b"mode", b"standalone"), (b"role", b"master"), (b"modules", [])]  # fmt: skip
        head = b"%%%d\r\n" % len(pairs) if version == 3 else b"*%d\r\n" % (2 * len(pairs))
        return head + b"".join([spoken(name) + spoken(value) for name, value in pairs])

    def ping(self, words: Words) -> bytes:
        return b"+PONG\r\n" if len(words) == 1 else spoken(words[1])

    def echo(self, words: Words) -> bytes:
        return spoken(words[1]) if len(words) == 2 else wrong_number(words)

    def quit(self, words: Words) -> bytes:
        self.is_last = True
        return OK

    def fine(self, words: Words) -> bytes:
        return OK

    def client(self, words: Words) -> bytes:
        second = words[1].upper() if len(words) > 1 else b""
        return b":%d\r\n" % (id(self) % 2**31) if second == b"ID" else OK

    def config(self, words: Words) -> bytes:
        """``CONFIG GET``, which tools ask before they begin: we have none."""
        return spoken([words[2], b""]) if len(words) > 2 else spoken([])

    def nothing(self, words: Words) -> bytes:
        return spoken([])

    def facts(self, words: Words) -> bytes:
        return spoken(b"# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nserver:ratekeeper\r\n")


COMMANDS: dict[bytes, Callable[[RespConnection, Words], bytes]] = {
    b"AUTH": RespConnection.auth,
    b"HELLO": RespConnection.hello,
    b"PING": RespConnection.ping,
    b"ECHO": RespConnection.echo,
    b"QUIT": RespConnection.quit,
    b"SELECT": RespConnection.fine,
    b"RESET": RespConnection.fine,
    b"CLIENT": RespConnection.client,
    b"COMMAND": RespConnection.nothing,
    b"CONFIG": RespConnection.config,
    b"INFO": RespConnection.facts,
}


class RespListener(Listener):
    """The Redis protocol, versions 2 and 3."""

    name = "resp"
    guest = RespConnection

    def __init__(self, keeper: Decider, bounds: Bounds) -> None:
        super().__init__(bounds, keeper.tally.turned_away)
        self.keeper = keeper
        self.token = keeper.options.token
        self.terms: dict[tuple[bytes, ...], Terms] = {}
        keeper.caches.append(self.terms)
        self.calls = 0
        self.allowed = 0  # on the hot path, until the next sweep
        self.refused: dict[bytes, int] = {}  # the same, by key

    def sweep(self) -> None:
        self.terms.clear()  # the rules, the store or the switches may be others by now
        tally = self.keeper.tally
        refused = sum(self.refused.values())
        for result, count in (("allowed", self.allowed), ("refused", refused)):
            if count:
                tally.bump(SPACE, result, count)
        tally.doors["resp"] = tally.doors.get("resp", 0) + self.calls + self.allowed + refused
        for key, count in nlargest(MOST_TOLD, self.refused.items(), key=itemgetter(1)):
            self.keeper.refused(text_of(key), count)
        self.calls = self.allowed = 0
        self.refused.clear()
        super().sweep()

    def throttle(self, words: Words) -> bytes | Awaitable[bytes]:
        """CL.THROTTLE, as redis-cell answers it: whole seconds, rounded up."""
        if len(words) not in (5, 6):
            return wrong_number(words)
        burst, count, period = (whole(word) for word in words[2:5])
        quantity = whole(words[5]) if len(words) == 6 else 1
        keeper, place = self.keeper, (SPACE, (burst, count, period), None)
        named = keeper.named.get(place)
        if named is None:
            named = keeper.keep(place, SPACE, Limit(count, period, burst=burst + 1))
        key = text_of(words[1])
        self.calls += 1
        check = Check(SPACE, encode(key), named.limit, quantity or 1)
        if quantity and not keeper.switches.is_killed and len(self.terms) < self.bounds.names:
            self.terms[tuple(words[2:])] = named.table, named.desk, quantity
        return self.then("check", check, throttled) if quantity else self.then("peek", check, looked)

    def check(self, words: Words) -> bytes | Awaitable[bytes]:
        """RK.CHECK."""
        if len(words) < 3:
            return wrong_number(words)
        cost, name, operation, place = 1, None, "check", 3
        while place < len(words):
            option = words[place].upper()
            if option == b"PEEK":
                operation = "peek"
                place += 1
            elif option == b"COST" and place + 1 < len(words):
                cost = whole(words[place + 1])
                place += 2
            elif option == b"NAME" and place + 1 < len(words):
                name = words[place + 1].decode()
                place += 2
            else:
                raise InvalidInput(
                    f"RK.CHECK: expected COST n, NAME name or PEEK, got {shown(option.decode('latin-1'))}."
                )
        named = self.keeper.name(None, words[2].decode(), name)
        check = Check(named.name, encode(text_of(words[1])), named.limit, whole_cost(cost))
        self.calls += 1
        return self.then(operation, check, exact)

    def then(self, operation: str, check: Check, tell: Callable[[Decision], bytes]) -> bytes | Awaitable[bytes]:
        outcome = self.keeper.ask(operation, (check,))
        if not hasattr(outcome, "__await__"):
            if operation == "check":
                self.note(check, outcome[0])
            return tell(outcome[0])

        async def later() -> bytes:
            (decision,) = await outcome
            if operation == "check":
                self.note(check, decision)
            return tell(decision)

        return later()

    def note(self, check: Check, decision: Decision) -> None:
        self.keeper.tally.count(check.space, decision)
        if not decision.allowed:
            self.keeper.refused(check.key)


def throttled(decision: Decision) -> bytes:
    """Limited or not, limit, remaining, seconds to the next try (-1: none needed), seconds to full recovery."""
    if decision.allowed:
        return looked(decision)
    retry = decision.retry_after
    return b"*5\r\n:1\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n" % (
        decision.limit, decision.remaining, -1 if retry is None else ceil(retry), ceil(decision.reset_after),
    )  # fmt: skip


def looked(decision: Decision) -> bytes:
    """Nothing was asked for, so nothing was refused."""
    return b"*5\r\n:0\r\n:%d\r\n:%d\r\n:-1\r\n:%d\r\n" % (
        decision.limit, decision.remaining, ceil(decision.reset_after),
    )  # fmt: skip


def exact(decision: Decision) -> bytes:
    retry = decision.retry_after
    return b"*6\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n" % (
        decision.allowed, decision.limit, decision.remaining, -1 if retry is None else round(retry * SECOND),
        round(decision.reset_after * SECOND), round(decision.delay * SECOND),
    )  # fmt: skip


def whole(word: bytes) -> int:
    if not DIGITS.fullmatch(word):
        raise InvalidInput(f"expected a whole number, got {shown(word.decode('latin-1'))}.")
    return int(word)


def text_of(word: bytes) -> str | bytes:
    """A key as text, so that it is the same one at every door; as bytes where it is none."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        return word


def failure(error: Exception) -> bytes:
    if isinstance(error, StoreUnavailable):
        return b"-TRYAGAIN the store does not answer\r\n"
    if not isinstance(error, RatekeeperError):
        if not isinstance(error, (UnicodeError, LookupError, TypeError, AttributeError, ArithmeticError)):
            log.error("resp: a command failed", exc_info=error)
        return b"-ERR expected a command of texts and numbers\r\n"
    return b"-ERR %b\r\n" % plain(str(error))


def plain(text: str) -> bytes:
    """One line: an error reply ends at its first line break."""
    return " ".join(text.split()).encode("ascii", "replace")[:300]


def wrong_number(words: Words) -> bytes:
    return b"-ERR wrong number of arguments for '%b' command\r\n" % plain(words[0].decode("latin-1")[:64].lower())


def spoken(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, int):
        return b":%d\r\n" % value
    return b"*%d\r\n" % len(value) + b"".join([spoken(item) for item in value])

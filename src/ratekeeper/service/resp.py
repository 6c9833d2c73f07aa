"""The listener for Redis clients, in any language.

    CL.THROTTLE key max_burst count period [quantity]      replies as redis-cell does
    RK.CHECK key limit [COST n] [NAME name] [PEEK]         allowed, limit, remaining, retry_after, reset_after, delay

``RK.CHECK`` replies with times in microseconds, and -1 for a retry that can never pass.  A ``quantity`` of 0 and
``PEEK`` take nothing.
"""

from __future__ import annotations

import re
from functools import partial
from heapq import nlargest
from hmac import compare_digest
from math import ceil
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hiredis import HiredisError, Reader

from ratekeeper.check import Check, to_cost
from ratekeeper.errors import InvalidInput, RatekeeperError, StoreUnavailable, shown
from ratekeeper.keys import encode
from ratekeeper.limit import Limit
from ratekeeper.service.connection import ClientConnection, Listener, PendingDecision, PendingResponse, log
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.decision import Decision
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.options import Bounds

    AnyReply = bytes | PendingResponse
    Words = list[bytes]
    Terms = tuple[Any, int]  # what the arguments of CL.THROTTLE mean: the limit's table and the cost

SPACE = "CL.THROTTLE"
MOST_REPORTED = 64  # the most refused keys of a second
OK = b"+OK\r\n"
LONG = re.compile(rb"\n[*%~>|]\d{4}")  # an array so long that allocating it would already do harm
DIGITS = re.compile(rb"\d{1,15}")


class NoCommand(HiredisError):
    """The Redis protocol, but not an array of words."""


class RespConnection(ClientConnection):
    """One Redis client."""

    listener: RespListener

    def __init__(self, listener: RespListener) -> None:
        super().__init__(listener)
        self.reader = Reader()
        self.pending = 0  # bytes of an incomplete command
        self.tail = b"\n"  # the last bytes before the next read: LONG may be cut by it
        self.is_authenticated = listener.token is None
        self.version = 2

    def busy_response(self) -> bytes:
        return b"-ERR max number of clients reached\r\n"

    def data_received(self, part: bytes) -> None:
        if self.is_ending:
            return
        reader = self.reader
        if not self.pending and part[0] != 42:  # not a "*": a person types
            self.execute_inline(part)
            return
        if LONG.search(self.tail + part):
            self.refuse("expected a command of fewer words")
            return
        listener = self.listener
        try:
            reader.feed(part)
            has_command = self.execute_all(reader.gets)
        except (HiredisError, MemoryError) as error:
            self.refuse("expected a command" if isinstance(error, NoCommand) else "expected the Redis protocol")
            return
        if reader.has_data():
            self.pending = len(part) if has_command else self.pending + len(part)
            self.tail = (self.tail + part)[-16:]
            if has_command or not self.is_receiving:
                self.active_at = listener.loop.time()
            self.is_receiving = True
            if self.pending > listener.bounds.body:
                self.refuse("expected a shorter command")
                return
        else:
            self.pending = 0
            self.tail = b"\n"
            self.is_receiving = False
            self.active_at = listener.loop.time()
        if listener.waiting > listener.bounds.waiting:
            self.pause_reading()
        self.flush()

    def execute_all(self, gets: Callable[[], Any]) -> bool:
        """Execute every complete command; says whether there was one."""
        listener, queue, append = self.listener, self.queue, self.ready.append
        terms_of, refused = listener.terms, listener.refused
        allowed = 0
        has_command = False
        try:
            while (words := gets()) is not False:
                has_command = True
                if words.__class__ is not list or not words:
                    raise NoCommand
                try:
                    # The hot path: arguments that came before, and a decision without asking the store.
                    if self.is_authenticated and (words[0] == b"CL.THROTTLE" or words[0] == b"cl.throttle"):
                        terms = terms_of.get(tuple(words[2:]))
                        if terms is None:
                            self.reply(listener.throttle(words))
                            continue
                        table, quantity = terms
                        key = text_of(words[1])
                        decision = table.check_now(key, quantity)
                        if decision is None:
                            throttled = partial(listener.throttled, words[1])
                            self.respond_later(PendingDecision(table, key, quantity, throttled, error_reply))
                            continue
                        if decision.reason:
                            listener.decider.note_fallback(decision)
                        if decision.allowed:
                            allowed += 1
                        else:
                            refused[words[1]] = refused.get(words[1], 0) + 1
                        if queue:
                            queue.append(throttle_reply(decision))
                        else:
                            append(throttle_reply(decision))
                        continue
                    reply = self.execute(words)
                except (
                    RatekeeperError,
                    ArithmeticError,
                    UnicodeError,
                    LookupError,
                    TypeError,
                    AttributeError,
                ) as error:
                    reply = error_reply(error)
                self.reply(reply)
        finally:
            listener.allowed += allowed
        return has_command

    def execute_inline(self, part: bytes) -> None:
        """Execute commands as a person types them, one per line."""
        if len(part) > 4096 or not part.endswith(b"\n"):
            self.refuse("expected the Redis protocol")
            return
        for line in part.splitlines():
            words = line.split()
            if words:
                try:
                    reply = self.execute(words)
                except (RatekeeperError, LookupError, UnicodeError) as error:
                    reply = error_reply(error)
                self.reply(reply)
        self.flush()

    def reply(self, reply: AnyReply) -> None:
        if isinstance(reply, bytes):
            self.respond(reply)
        else:
            self.respond_later(reply)

    def refuse(self, why: str) -> None:
        """Reply with a protocol error and hang up: the bytes that follow cannot be parsed."""
        self.is_ending = self.is_receiving = True
        self.respond(b"-ERR Protocol error: %b\r\n" % why.encode())
        self.flush()

    def on_idle(self) -> None:
        """Close only connections that have not authenticated: Redis clients keep idle connections in pools."""
        if not self.is_authenticated:
            self.transport.close()

    def execute(self, words: Words) -> AnyReply:
        if not all(word.__class__ is bytes for word in words):
            raise InvalidInput("expected a command of texts.")
        name = words[0].upper()
        if not self.is_authenticated and name not in (b"AUTH", b"HELLO", b"QUIT"):
            return b"-NOAUTH Authentication required.\r\n"
        command = COMMANDS.get(name)
        if command is not None:
            return command(self, words)
        if name == b"CL.THROTTLE":
            return self.listener.throttle(words)
        if name == b"RK.CHECK":
            return self.listener.check(words)
        return b"-ERR unknown command '%b'\r\n" % one_line(name.decode("latin-1")[:64])

    def authorise(self, password: bytes) -> bytes:
        token = self.listener.token
        if token is None:
            return b"-ERR AUTH called without any password configured. Are you sure your configuration is correct?\r\n"
        if not compare_digest(password, token.encode()):
            return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        self.is_authenticated = True
        return OK

    def auth(self, words: Words) -> bytes:
        if len(words) not in (2, 3):
            return wrong_number(words)
        return self.authorise(words[-1])

    def hello(self, words: Words) -> bytes:
        index, version = 2, self.version
        if len(words) > 1:
            if words[1] not in (b"2", b"3"):
                return b"-NOPROTO unsupported protocol version\r\n"
            version = int(words[1])
        while index < len(words):
            option = words[index].upper()
            if option == b"AUTH" and index + 2 < len(words):
                reply = self.authorise(words[index + 2])
                if reply is not OK:
                    return reply
                index += 3
            elif option == b"SETNAME" and index + 1 < len(words):
                index += 2
            else:
                return b"-ERR Syntax error in HELLO\r\n"
        if not self.is_authenticated:
            return b"-NOAUTH HELLO must be called with the client already authenticated\r\n"
        self.version = version
        pairs = [(b"server", b"ratekeeper"), (b"version", b"7.0.0"), (b"proto", version), (b"id", id(self) % 2**31),
                 (b"mode", b"standalone"), (b"role", b"master"), (b"modules", [])]  # fmt: skip
        head = b"%%%d\r\n" % len(pairs) if version == 3 else b"*%d\r\n" % (2 * len(pairs))
        return head + b"".join([encoded(name) + encoded(value) for name, value in pairs])

    def ping(self, words: Words) -> bytes:
        return b"+PONG\r\n" if len(words) == 1 else encoded(words[1])

    def echo(self, words: Words) -> bytes:
        return encoded(words[1]) if len(words) == 2 else wrong_number(words)

    def quit(self, words: Words) -> bytes:
        self.is_ending = True
        return OK

    def accept(self, words: Words) -> bytes:
        return OK

    def client(self, words: Words) -> bytes:
        second = words[1].upper() if len(words) > 1 else b""
        return b":%d\r\n" % (id(self) % 2**31) if second == b"ID" else OK

    def config(self, words: Words) -> bytes:
        """Reply to ``CONFIG GET``, which tools send first, that nothing is configured."""
        return encoded([words[2], b""]) if len(words) > 2 else encoded([])

    def empty(self, words: Words) -> bytes:
        return encoded([])

    def info(self, words: Words) -> bytes:
        return encoded(b"# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nserver:ratekeeper\r\n")


COMMANDS: dict[bytes, Callable[[RespConnection, Words], bytes]] = {
    b"AUTH": RespConnection.auth,
    b"HELLO": RespConnection.hello,
    b"PING": RespConnection.ping,
    b"ECHO": RespConnection.echo,
    b"QUIT": RespConnection.quit,
    b"SELECT": RespConnection.accept,
    b"RESET": RespConnection.accept,
    b"CLIENT": RespConnection.client,
    b"COMMAND": RespConnection.empty,
    b"CONFIG": RespConnection.config,
    b"INFO": RespConnection.info,
}


class RespListener(Listener):
    """The Redis protocol, versions 2 and 3."""

    name = "resp"
    connection_class = RespConnection

    def __init__(self, decider: Decider, bounds: Bounds) -> None:
        super().__init__(bounds, decider.counters.turned_away)
        self.decider = decider
        self.token = decider.options.token
        self.terms: dict[tuple[bytes, ...], Terms] = {}  # of CL.THROTTLE, by its arguments behind the key
        decider.caches.append(self.terms)
        self.calls = 0
        self.allowed = 0  # on the hot path, since the last sweep
        self.refused: dict[bytes, int] = {}  # the same, by key

    def sweep(self) -> None:
        self.terms.clear()  # rules, store or overrides may have changed
        counters = self.decider.counters
        refused = sum(self.refused.values())
        for result, count in (("allowed", self.allowed), ("refused", refused)):
            if count:
                counters.bump(SPACE, result, count)
        counters.calls["resp"] = counters.calls.get("resp", 0) + self.calls + self.allowed + refused
        for key, count in nlargest(MOST_REPORTED, self.refused.items(), key=itemgetter(1)):
            self.decider.note_refused(text_of(key), count)
        self.calls = self.allowed = 0
        self.refused.clear()
        super().sweep()

    def throttle(self, words: Words) -> AnyReply:
        """CL.THROTTLE, with the reply of redis-cell: whole seconds, rounded up."""
        if len(words) not in (5, 6):
            return wrong_number(words)
        burst, count, period = (whole_number(word) for word in words[2:5])
        quantity = whole_number(words[5]) if len(words) == 6 else 1
        decider, place = self.decider, (SPACE, (burst, count, period), None)
        named = decider.limits.by_name.get(place)
        if named is None:
            named = decider.limits.add(place, SPACE, Limit(count, period, burst=burst + 1))
        if quantity and not decider.overrides.is_killed and len(self.terms) < self.bounds.names:
            self.terms[tuple(words[2:])] = named.table, quantity
        self.calls += 1
        check = Check(SPACE, encode(text_of(words[1])), named.limit, quantity or 1)
        return self.ask("check", check, throttle_reply) if quantity else self.ask("peek", check, peek_reply)

    def throttled(self, key: bytes, decision: Decision) -> bytes:
        """Count a decision of the store, and reply to CL.THROTTLE with it."""
        if decision.reason:
            self.decider.note_fallback(decision)
        if decision.allowed:
            self.allowed += 1
        else:
            self.refused[key] = self.refused.get(key, 0) + 1
        return throttle_reply(decision)

    def check(self, words: Words) -> AnyReply:
        """RK.CHECK."""
        if len(words) < 3:
            return wrong_number(words)
        cost, name, operation, index = 1, None, "check", 3
        while index < len(words):
            option = words[index].upper()
            if option == b"PEEK":
                operation = "peek"
                index += 1
            elif option == b"COST" and index + 1 < len(words):
                cost = whole_number(words[index + 1])
                index += 2
            elif option == b"NAME" and index + 1 < len(words):
                name = words[index + 1].decode()
                index += 2
            else:
                raise InvalidInput(
                    f"RK.CHECK: expected COST n, NAME name or PEEK, got {shown(option.decode('latin-1'))}."
                )
        named = self.decider.limits.find(None, words[2].decode(), name)
        check = Check(named.name, encode(text_of(words[1])), named.limit, to_cost(cost))
        self.calls += 1
        return self.ask(operation, check, check_reply)

    def ask(self, operation: str, check: Check, encode_reply: Callable[[Decision], bytes]) -> AnyReply:
        def respond(decisions: tuple[Decision, ...]) -> bytes:
            (decision,) = decisions
            if operation == "check":
                self.decider.counters.count(check.space, decision)
                if not decision.allowed:
                    self.decider.note_refused(check.key)
            return encode_reply(decision)

        outcome = self.decider.ask(operation, (check,))
        return PendingResponse(outcome, respond, error_reply) if hasattr(outcome, "__await__") else respond(outcome)


def throttle_reply(decision: Decision) -> bytes:
    """Limited or not, limit, remaining, seconds to the next try (-1: none needed), seconds to full recovery."""
    if decision.allowed:
        return b"*5\r\n:0\r\n:%d\r\n:%d\r\n:-1\r\n:%d\r\n" % (
            decision.limit, decision.remaining, ceil(decision.reset_after),
        )  # fmt: skip
    retry = decision.retry_after
    return b"*5\r\n:1\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n" % (
        decision.limit, decision.remaining, -1 if retry is None else ceil(retry), ceil(decision.reset_after),
    )  # fmt: skip


def peek_reply(decision: Decision) -> bytes:
    """The reply to CL.THROTTLE that is never "limited": nothing was taken, so nothing was refused."""
    return b"*5\r\n:0\r\n:%d\r\n:%d\r\n:-1\r\n:%d\r\n" % (
        decision.limit, decision.remaining, ceil(decision.reset_after),
    )  # fmt: skip


def check_reply(decision: Decision) -> bytes:
    """The reply to RK.CHECK, with times in microseconds."""
    retry = decision.retry_after
    return b"*6\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n" % (
        decision.allowed, decision.limit, decision.remaining, -1 if retry is None else round(retry * SECOND),
        round(decision.reset_after * SECOND), round(decision.delay * SECOND),
    )  # fmt: skip


def whole_number(word: bytes) -> int:
    if not DIGITS.fullmatch(word):
        raise InvalidInput(f"expected a whole number, got {shown(word.decode('latin-1'))}.")
    return int(word)


def text_of(word: bytes) -> str | bytes:
    """A key as text, so that it is the same key on every listener; as bytes if it is not UTF-8."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        return word


def error_reply(error: Exception) -> bytes:
    if isinstance(error, StoreUnavailable):
        return b"-TRYAGAIN the store does not answer\r\n"
    if not isinstance(error, RatekeeperError):
        if not isinstance(error, (UnicodeError, LookupError, TypeError, AttributeError, ArithmeticError)):
            log.error("resp: a command failed", exc_info=error)
        return b"-ERR expected a command of texts and numbers\r\n"
    return b"-ERR %b\r\n" % one_line(str(error))


def one_line(text: str) -> bytes:
    """Put a text on one line: an error reply ends at its first line break."""
    return " ".join(text.split()).encode("ascii", "replace")[:300]


def wrong_number(words: Words) -> bytes:
    return b"-ERR wrong number of arguments for '%b' command\r\n" % one_line(words[0].decode("latin-1")[:64].lower())


def encoded(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, int):
        return b":%d\r\n" % value
    return b"*%d\r\n" % len(value) + b"".join([encoded(item) for item in value])

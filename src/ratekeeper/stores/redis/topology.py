"""Which server to ask: a single one, the master that sentinels name, or the node of a cluster that has a key.

No I/O: what must be asked on the way is yielded as steps (see steps.py), which threads and event loops run alike.
Only the digest of a key stands between braces, so the slot follows from it alone.
"""

from __future__ import annotations

import logging
from binascii import crc_hqx
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.breaker import Breaker
from ratekeeper.stores.redis.resp import BrokenReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from ratekeeper.stores.redis.steps import Steps
    from ratekeeper.stores.redis.url import Address, RedisSettings

    Ask = Callable[[Address, tuple[bytes, ...], float], Any]  # an address, the words of a command, seconds for it

    class AnyServer(Protocol):
        name: str
        breaker: Breaker
        patience: float
        first_until: float

        def reach(self) -> object: ...
        def away(self) -> str: ...
        def close(self) -> None: ...


log = logging.getLogger("ratekeeper.store")
SLOTS = 16384
MOST_NODES = 2000  # that a store remembers: twice as many masters as a cluster should have
MOST_WARM = 64  # nodes that are connected before a request needs them
LONGEST_HOST = 253  # letters, as in the DNS
Server = TypeVar("Server", bound="AnyServer")


def slot_of(key: bytes) -> int:
    """The slot of a key's name, or of a word that carries it."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def read_address(host: object, port: object, asked: Address) -> Address:
    """The address that a server names; an empty or unknown host is the one that was asked.  Raises BrokenReply."""
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if name is None or name in ("", "?"):
        name = asked[0]
    text = port.decode("ascii", "replace") if isinstance(port, bytes) else str(port)
    if (
        not isinstance(name, str)
        or len(name) > LONGEST_HOST
        or not all("!" <= letter <= "~" for letter in name)
        or not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536)
    ):
        raise BrokenReply("named a node by something else than a host and a port")
    return name, int(text)


def read_redirection(text: str, asked: Address) -> tuple[int, Address]:
    """The slot and the address in ``MOVED 7 host:port`` or ``ASK 7 host:port``.  Raises BrokenReply."""
    _, slot, target, *_ = [*text.split(" "), "", ""]
    host, _, port = target.rpartition(":")
    if not (slot.isascii() and slot.isdecimal() and len(slot) <= 5 and int(slot) < SLOTS):
        raise BrokenReply("named a slot that no cluster has")
    return int(slot), read_address(host, port, asked)


def read_master(reply: object, asked: Address) -> Address:
    """The address that a sentinel answers with.  Raises BrokenReply."""
    match reply:
        case [bytes(host), bytes(port)]:
            return read_address(host, port, asked)
    raise BrokenReply("answered SENTINEL with something else than an address")


class SlotMap:
    """The map from slots to masters, as far as it is known."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self.seeds = list(seeds)
        self.masters: dict[int, Address] = {}

    def learn(self, reply: Sequence[Any], asked: Address) -> None:
        """Take in the reply to CLUSTER SLOTS; raises BrokenReply, and changes nothing, if it is none."""
        masters: dict[int, Address] = {}
        for share in reply if isinstance(reply, list) else [reply]:
            match share:
                case [int(first), int(last), [host, port, *_], *_] if 0 <= first <= last < SLOTS:
                    address = read_address(host, port, asked)
                case _:
                    raise BrokenReply("answered CLUSTER SLOTS with something else than shares of slots")
            for slot in range(first, last + 1):
                masters[slot] = address
        self.masters = masters

    def moved(self, slot: int, address: Address) -> None:
        self.masters[slot] = address

    def addresses(self) -> list[Address]:
        """The servers to ask for the map: those in the map, then those configured."""
        return list(dict.fromkeys([*self.masters.values(), *self.seeds]))


class Topology:
    """Finds the server of a key.  Its steps call ``ask``, which raises OSError or StoreUnavailable."""

    def __init__(self, settings: RedisSettings, ask: Ask) -> None:
        self.settings = settings
        self.ask = ask
        self.slots = SlotMap(settings.addresses)
        self.learned: Callable[[], None] = lambda: None  # called when the map has been learned
        self.breaker = Breaker()  # of the map: open while no server tells it
        self.is_missed = False  # the log says that nothing can be asked without the map

    def locate(self, address: Address, is_away: bool, until: float) -> Steps[Address]:
        """Where to connect for the server at ``address``: with sentinels, to the master that they name."""
        if self.settings.service:
            return (yield from self.find_master(until))
        if self.settings.is_cluster and is_away:  # another server may have taken over its slots
            now = monotonic()
            with suppress(StoreUnavailable):
                yield from self.learn_slots(now + (until - now) / 2)  # time is left to connect
        return address

    def find_master(self, until: float) -> Steps[Address]:
        """Ask the sentinels, one after the other, for the address of the master."""
        words = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.settings.service.encode())
        why = ""
        sentinels = self.settings.addresses
        for tried, sentinel in enumerate(sentinels):
            share = (until - monotonic()) / (len(sentinels) - tried + 1)  # time is left to reach the master
            try:
                reply = yield self.ask, (sentinel, words, share)
            except (OSError, StoreUnavailable) as error:
                why = str(error) or "no answer"
                continue
            if reply:
                try:
                    return read_master(reply, sentinel)
                except BrokenReply as error:
                    why = str(error)
                    continue
            why = f"no sentinel knows the service {self.settings.service!r}"
        raise StoreUnavailable(self.settings.shown, f"could not find the master ({why})")

    def learn_slots(self, until: float) -> Steps[None]:
        """Ask the nodes, one after the other, which of them serves which slot."""
        why = ""
        nodes = self.slots.addresses()
        for tried, node in enumerate(nodes):
            share = (until - monotonic()) / (len(nodes) - tried)  # a node that hangs leaves time for the others
            try:
                self.slots.learn((yield self.ask, (node, (b"CLUSTER", b"SLOTS"), share)), node)
            except (OSError, StoreUnavailable) as error:
                why = str(error) or "no answer"
            else:
                self.breaker.close(monotonic())
                if self.is_missed:
                    self.is_missed = False
                    log.info("%s: answers again", self.settings.shown)
                self.learned()
                return
        raise self.unknown(f"could not learn which node serves which slot ({why})")

    def unknown(self, why: str) -> StoreUnavailable:
        """Note that the map cannot be learned at this moment; the error that says so."""
        self.breaker.trip(monotonic(), why)
        if not self.slots.masters and not self.is_missed:  # else each node that is away has a line of its own
            self.is_missed = True
            log.warning("%s: %s. Using %s until it recovers", self.settings.shown, why, self.settings.fallback)
        return StoreUnavailable(self.settings.shown, why)

    def node(self, keys: bytes) -> Address | None:
        """The node that has these keys; None: learn the slots first.  Raises while they cannot be learned."""
        address = self.slots.masters.get(slot_of(keys))
        if address is None and self.breaker.is_open and not self.breaker.is_due(monotonic()):
            raise StoreUnavailable(self.settings.shown, self.breaker.why)
        return address

    def learned_node(self, keys: bytes) -> Address:
        """The same after the slots were learned."""
        slot = slot_of(keys)
        address = self.slots.masters.get(slot)
        if address is None:
            raise StoreUnavailable(self.settings.shown, f"no node serves slot {slot}")
        return address


class Servers(Generic[Server]):
    """The servers of one store, for threads or for one event loop: how they are found, and which of them is away."""

    server: Server  # the only one, unless it is a cluster

    def __init__(self, settings: RedisSettings, now: float) -> None:
        self.settings = settings
        # Until then a caller may wait at the first contact, which is one for the map and all nodes of a cluster.
        self.first_until = now + settings.first_deadline
        self.is_met = False  # the nodes of a cluster are known: one that joins later is not waited for
        self.is_closed = False
        self.topology = Topology(settings, self.ask_once)
        self.topology.learned = self.note_learned
        self.servers: dict[Address, Server] = {}
        self.moved: set[Address] = set()  # servers that are away, and whose slots others have
        if not settings.is_cluster:
            self.server = self.server_at(settings.addresses[0])

    def note_learned(self) -> None:
        """Connect to every node, the first time; later, note which nodes lost their slots."""
        self.note_moved()
        if self.is_met:
            return
        for address in list(dict.fromkeys(self.topology.slots.masters.values()))[:MOST_WARM]:
            if not self.is_closed:
                self.server_at(address).reach()
        self.is_met = True

    def note_moved(self) -> None:
        """Log, once, that other nodes serve the slots of a master that is away: nobody will see it come back."""
        masters = set(self.topology.slots.masters.values())
        self.moved -= masters
        for address, server in list(self.servers.items()):
            if server.breaker.is_open and address not in masters and address not in self.moved:
                self.moved.add(address)
                log.info("%s: other nodes serve its slots now", server.name)

    def ask_once(self, address: Address, words: tuple[bytes, ...], seconds: float) -> Any:
        """The reply to one command on a connection of its own."""
        raise NotImplementedError

    def open_server(self, address: Address, name: str) -> Server:
        raise NotImplementedError

    def server_at(self, address: Address) -> Server:
        server = self.servers.get(address)
        if server is None:
            if len(self.servers) >= MOST_NODES:
                self.forget_servers()
            name = f"redis://{address[0]}:{address[1]}" if self.settings.is_cluster else self.settings.shown
            server = self.open_server(address, name)
            if self.is_met:
                server.patience, server.first_until = self.settings.deadline, 0.0
            elif self.settings.is_cluster:
                server.first_until = min(server.first_until, self.first_until)
            server = self.servers.setdefault(address, server)
        return server

    def forget_servers(self) -> None:
        """Close servers that the map does not name: a server that redirects for ever must not fill the memory."""
        named = {*self.topology.slots.masters.values(), *self.settings.addresses}
        for address in [address for address in self.servers if address not in named]:
            self.servers.pop(address).close()
        if len(self.servers) >= MOST_NODES:
            raise StoreUnavailable(self.settings.shown, f"named more than {MOST_NODES} nodes")

    def away(self, keys: bytes = b"") -> str:
        """Why the server of these keys cannot be asked at this moment; "" if it may be asked."""
        if not self.settings.is_cluster:
            return self.server.away()
        address = self.topology.slots.masters.get(slot_of(keys))
        if address is None:
            breaker = self.topology.breaker
            return breaker.why if breaker.is_waiting(monotonic()) else ""
        server = self.servers.get(address)
        return "" if server is None else server.away()

    def close(self) -> None:
        self.is_closed = True
        for server in list(self.servers.values()):
            server.close()

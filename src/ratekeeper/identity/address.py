"""Find the client's address: the socket's peer, or the client that a trusted proxy forwards.

Law: an address that a client wrote is never believed.  Start at the socket's peer.  While the address is that of a
trusted proxy, step one element to the left in the one configured header.  Stop at the first address that is not trusted
or cannot be read.

An address has two uses.  Trust and ``allow_from`` look at the address itself; only IPv4-mapped forms are unmapped.
Limits count a *subject*: IPv6 by prefix, and NAT64, 6to4 and Teredo as the IPv4 host inside them.  Otherwise all hosts
behind NAT64 would share one counter, and one host with 6to4 would have many.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ratekeeper.identity.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Address = IPv4Address | IPv6Address
    Network = IPv4Network | IPv6Network

UNIX = "unix"  # the peer of a UNIX socket, and the word that trusts it
UNKNOWN = "unknown"  # peers whose address cannot be read share one counter
NO_HOST = bytes(8)
TEREDO, SIX_TO_FOUR = b"\x20\x01\0\0", b"\x20\x02"
NAT64 = int(IPv6Address("64:ff9b::")) >> 32
MOST_CACHED = 16_384  # addresses
LONGEST_TEXT = 100
MOST_HOPS = 32  # elements of a header, from the right; a client may have written those on the left
LONGEST_LINE = 4_096  # characters of a Forwarded line, from the right


class Networks:
    """A set of networks, with a quick test whether an address is in one."""

    __slots__ = ("by_length", "has_unix", "networks", "texts")

    def __init__(self, networks: Iterable[Network | str]) -> None:
        self.texts = [str(network) for network in networks]
        self.has_unix = UNIX in self.texts
        parsed = [ip_network(text, strict=False) for text in self.texts if text != UNIX]
        self.networks = [
            (network.version, int(network.network_address) >> shift, shift)
            for network in parsed
            for shift in [network.max_prefixlen - network.prefixlen]
        ]
        prefixes: dict[tuple[int, int], set[int]] = {}
        for version, prefix, shift in self.networks:
            prefixes.setdefault((version, shift), set()).add(prefix)
        self.by_length = [(version, shift, some) for (version, shift), some in prefixes.items()]

    def __contains__(self, address: object) -> bool:
        if address is None:
            return self.has_unix
        version, number = address.version, int(address)  # type: ignore[attr-defined, call-overload]
        for each, shift, prefixes in self.by_length:  # noqa: SIM110 - any() takes twice as long
            if version == each and number >> shift in prefixes:
                return True
        return False

    def __bool__(self) -> bool:
        return bool(self.texts)


class ClientAddress:
    """A parsed address: the subject that limits count for it, and whether it is a trusted proxy."""

    __slots__ = ("_address", "subject", "trusted")

    def __init__(self, address: Address | bytes | None, subject: str, trusted: bool) -> None:
        self._address = address  # its bytes until somebody looks at it
        self.subject = subject
        self.trusted = trusted

    @property
    def address(self) -> Address | None:
        """The address itself; None for a UNIX socket, and for text that is none."""
        address = self._address
        if address.__class__ is bytes:
            address = self._address = IPv4Address(address) if len(address) == 4 else IPv6Address(address)
        return address  # type: ignore[return-value]


class Addresses:
    """Finds the client's address in a request.  ``header`` is the header that trusted proxies write."""

    def __init__(
        self,
        trusted: Iterable[Network | str] = (),
        header: str = "X-Forwarded-For",
        ipv4_prefix: int = 32,
        ipv6_prefix: int = 64,
        proxies_drop_underscores: bool = False,
    ) -> None:
        self.trusted = Networks(trusted)
        self.header = header.lower().encode("latin-1")
        self._ipv4_shift = 32 - ipv4_prefix
        self._ipv6_shift = 128 - ipv6_prefix
        self.proxies_drop_underscores = proxies_drop_underscores
        self._cache: dict[str | None, ClientAddress] = {}

    def find(self, request: Request) -> ClientAddress:
        """Return the address of the client that sent ``request``."""
        peer = self._cache.get(request.peer) or self._parse(request.peer)
        if not peer.trusted or not self._written_by_proxy(request):
            return peer
        return self._forwarded(peer, request)

    def trusts(self, request: Request) -> bool:
        """Whether a trusted proxy sent ``request``, and its header fields are those that the proxy wrote."""
        return self.parse(request.peer).trusted and self._written_by_proxy(request)

    def _written_by_proxy(self, request: Request) -> bool:
        return self.proxies_drop_underscores or not request.joins_names

    def parse(self, text: str | None) -> ClientAddress:
        """Parse the address of a peer; None is a UNIX socket."""
        return self._cache.get(text) or self._parse(text)

    def _forwarded(self, peer: ClientAddress, request: Request) -> ClientAddress:
        """Return the first address behind the trusted proxies, from right to left."""
        lines = request.values(self.header)
        if not lines:
            return peer
        if self.header == b"forwarded":  # line by line, so that a quote that a client left open ends with its line
            elements = [element for line in lines[-MOST_HOPS:] for element in forwarded_for(line[-LONGEST_LINE:])]
        elif self.header == b"x-forwarded-for":
            elements = ",".join(lines).rsplit(",", MOST_HOPS)[-MOST_HOPS:]
        else:  # X-Real-IP and the like contain one address
            elements = lines[-1:]
        client = peer
        for element in reversed(elements[-MOST_HOPS:]):
            text = bare_address(element)
            hop = (self._cache.get(text) or self._parse(text)) if text else None
            if hop is None or hop.address is None:  # unreadable: count the proxy that wrote it
                break
            client = hop
            if not client.trusted:
                break
        return client

    def _parse(self, text: str | None) -> ClientAddress:
        if text is None or text == "" or text.startswith("/"):
            parsed = ClientAddress(None, UNIX, self.trusted.has_unix)
        else:
            parsed = self._parse_plain(text) or self._parse_any(text)
        if text is not None and len(text) > LONGEST_TEXT:
            return parsed
        if len(self._cache) >= MOST_CACHED:
            self._cache.clear()
        self._cache[text] = parsed
        return parsed

    def _parse_any(self, text: str) -> ClientAddress:
        address = parse_address(text)
        if address is None:
            return ClientAddress(None, UNKNOWN, False)
        return ClientAddress(address, self._subject(address), address in self.trusted)

    def _parse_plain(self, text: str) -> ClientAddress | None:
        """What ``_parse_any`` returns, for most addresses and in a tenth of the time; None for the others.

        Those are IPv4 where each host counts for itself, and IPv6 of 2000::/3 by /64 unless it has an IPv4 host inside.
        A flood of addresses that were never seen before costs little more than one client.
        """
        try:
            if ":" not in text:
                if self._ipv4_shift:
                    return None
                packed = inet_pton(AF_INET, text)
                found = ClientAddress(packed, text, False)
            else:
                packed = inet_pton(AF_INET6, text)
                if self._ipv6_shift != 64 or packed[0] >> 5 != 1 or packed.startswith((TEREDO, SIX_TO_FOUR)):
                    return None
                found = ClientAddress(packed, inet_ntop(AF_INET6, packed[:8] + NO_HOST) + "/64", False)
        except (OSError, ValueError):  # other texts may be addresses too
            return None
        if self.trusted.by_length:
            found.trusted = found.address in self.trusted
        return found

    def _subject(self, address: Address) -> str:
        """What limits count: ``203.0.113.9``, ``2001:db8:1:2::/64``."""
        counted = embedded(address)
        if counted.version == 4:
            shift = self._ipv4_shift
            if not shift:
                return str(counted)
            return f"{IPv4Address(int(counted) >> shift << shift)}/{32 - shift}"
        shift = self._ipv6_shift
        return f"{IPv6Address(int(counted) >> shift << shift)}/{128 - shift}"


def parse_address(text: str) -> Address | None:
    """Parse an address, without its zone and unmapped from IPv6; None if the text is not an address."""
    text = text.partition("%")[0]
    if len(text) > LONGEST_TEXT or not text.isascii():
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def embedded(address: Address) -> Address:
    """The IPv4 host inside a NAT64, 6to4 or Teredo address; else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if int(address) >> 32 == NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.sixtofour is not None:
        return address.sixtofour
    teredo = address.teredo
    return address if teredo is None else teredo[1]


def bare_address(element: str) -> str:
    """``1.2.3.4:80``, ``[2001:db8::1]:443``, ``"1.2.3.4"`` -> the address alone; ports and quotes go."""
    text = element.strip().strip('"').strip()
    if text.startswith("["):
        inside, closed, _ = text[1:].partition("]")
        return inside if closed else ""
    if text.count(":") == 1:
        text = text.partition(":")[0]
    return text


def forwarded_for(text: str) -> list[str]:
    """The ``for=`` of each element of a Forwarded header (RFC 7239), "" where it has none."""
    elements = []
    for element in split_outside_quotes(text, ","):
        client = ""
        for pair in split_outside_quotes(element, ";"):
            name, _, value = pair.partition("=")
            if name.strip().lower() == "for":
                client = unquoted(value.strip())
        elements.append(client)
    return elements


def split_outside_quotes(text: str, separator: str) -> list[str]:
    parts, start, is_quoted, is_escaped = [], 0, False, False
    for place, character in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif is_quoted and character == "\\":
            is_escaped = True
        elif character == '"':
            is_quoted = not is_quoted
        elif character == separator and not is_quoted:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return parts


def unquoted(value: str) -> str:
    if len(value) < 2 or not (value.startswith('"') and value.endswith('"')):
        return value
    characters, is_escaped = [], False
    for character in value[1:-1]:
        if character == "\\" and not is_escaped:
            is_escaped = True
            continue
        is_escaped = False
        characters.append(character)
    return "".join(characters)

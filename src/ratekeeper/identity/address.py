"""Whose address is it: the socket's peer, or whom a trusted proxy speaks for.

Law: an address that a client wrote is never believed.  Start at the socket's peer; while the address at hand is a
trusted proxy, step one element to the left in the one configured header; stop at the first that is not trusted or
cannot be read.  Two views of an address are kept apart: *who it is* (for trust and ``allow_from``; only IPv4-mapped
forms are unmapped) and *what is counted* (IPv6 by prefix; NAT64, 6to4 and Teredo as the IPv4 host inside them, else
all of them would share, or one of them would own, many counters).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ratekeeper.identity.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Address = IPv4Address | IPv6Address
    Network = IPv4Network | IPv6Network

UNIX = "unix"  # a peer without an address, and the word that trusts it
UNKNOWN = "unknown"  # a peer whose address cannot be read: all of them are counted as one
NAT64 = int(IPv6Address("64:ff9b::")) >> 32
MOST_KNOWN = 16_384  # addresses remembered, so that parsing them is paid once
LONGEST_TEXT = 100
MOST_HOPS = (
    32  # elements of a header that are looked at, from the right: what is left of them a client may have written
)
LONGEST_LINE = 4_096  # letters of a Forwarded line, from the right


class Networks:
    """A set of networks; knows quickly whether an address is in one."""

    __slots__ = ("has_unix", "networks", "texts")

    def __init__(self, networks: Iterable[Network | str]) -> None:
        self.texts = [str(network) for network in networks]
        self.has_unix = UNIX in self.texts
        parsed = [ip_network(text, strict=False) for text in self.texts if text != UNIX]
        self.networks = [
            (network.version, int(network.network_address) >> shift, shift)
            for network in parsed
            for shift in [network.max_prefixlen - network.prefixlen]
        ]

    def __contains__(self, address: object) -> bool:
        if address is None:
            return self.has_unix
        version, number = address.version, int(address)  # type: ignore[attr-defined, call-overload]
        return any(version == own and number >> shift == prefix for own, prefix, shift in self.networks)

    def __bool__(self) -> bool:
        return bool(self.texts)


class ClientAddress:
    """What is known of one peer or header element."""

    __slots__ = ("address", "subject", "trusted")

    def __init__(self, address: Address | None, subject: str, trusted: bool) -> None:
        self.address = address
        self.subject = subject
        self.trusted = trusted


class Addresses:
    """Finds the client's address in a request.  ``header`` is the one that trusted proxies write."""

    def __init__(
        self,
        trusted: Iterable[Network | str] = (),
        header: str = "X-Forwarded-For",
        ipv4_prefix: int = 32,
        ipv6_prefix: int = 64,
    ) -> None:
        self.trusted = Networks(trusted)
        self.header = header.lower().encode("latin-1")
        self.ipv4_shift = 32 - ipv4_prefix
        self.ipv6_shift = 128 - ipv6_prefix
        self.known: dict[str | None, ClientAddress] = {}

    def find(self, request: Request) -> ClientAddress:
        """Whom to count for ``request``."""
        here = self.known.get(request.peer) or self.learn(request.peer)
        if not here.trusted:
            return here
        return self.behind(here, request)

    def behind(self, here: ClientAddress, request: Request) -> ClientAddress:
        lines = request.values(self.header)
        if not lines:
            return here
        if self.header == b"forwarded":  # line by line: a quote that a client left open ends with its line
            elements = [element for line in lines[-MOST_HOPS:] for element in forwarded_for(line[-LONGEST_LINE:])]
        elif self.header == b"x-forwarded-for":
            elements = ",".join(lines).rsplit(",", MOST_HOPS)[-MOST_HOPS:]
        else:  # X-Real-IP and its like carry one address
            elements = lines[-1:]
        for element in reversed(elements[-MOST_HOPS:]):
            text = bare_address(element)
            found = (self.known.get(text) or self.learn(text)) if text else None
            if found is None or found.address is None:  # unreadable: whoever wrote it is the last we can name
                break
            here = found
            if not here.trusted:
                break
        return here

    def learn(self, text: str | None) -> ClientAddress:
        if text is None or text == "" or text.startswith("/"):
            found = ClientAddress(None, UNIX, self.trusted.has_unix)
        else:
            address = parse_address(text)
            if address is None:
                found = ClientAddress(None, UNKNOWN, False)
            else:
                found = ClientAddress(address, self.subject(address), address in self.trusted)
        if text is not None and len(text) > LONGEST_TEXT:
            return found
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[text] = found
        return found

    def subject(self, address: Address) -> str:
        """What is counted: ``203.0.113.9``, ``2001:db8:1:2::/64``."""
        counted = embedded(address)
        if counted.version == 4:
            shift = self.ipv4_shift
            if not shift:
                return str(counted)
            return f"{IPv4Address(int(counted) >> shift << shift)}/{32 - shift}"
        shift = self.ipv6_shift
        return f"{IPv6Address(int(counted) >> shift << shift)}/{128 - shift}"


def parse_address(text: str) -> Address | None:
    """The address in ``text``, without zone and unmapped from IPv6; None if it is none."""
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
    """The IPv4 host that a NAT64, 6to4 or Teredo address stands for; else the address itself."""
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
        found = ""
        for pair in split_outside_quotes(element, ";"):
            name, _, value = pair.partition("=")
            if name.strip().lower() == "for":
                found = unquoted(value.strip())
        elements.append(found)
    return elements


def split_outside_quotes(text: str, mark: str) -> list[str]:
    parts, start, quoted, skip = [], 0, False, False
    for place, letter in enumerate(text):
        if skip:
            skip = False
        elif quoted and letter == "\\":
            skip = True
        elif letter == '"':
            quoted = not quoted
        elif letter == mark and not quoted:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return parts


def unquoted(value: str) -> str:
    if len(value) < 2 or not (value.startswith('"') and value.endswith('"')):
        return value
    inside, plain, skip = value[1:-1], [], False
    for letter in inside:
        if letter == "\\" and not skip:
            skip = True
            continue
        skip = False
        plain.append(letter)
    return "".join(plain)

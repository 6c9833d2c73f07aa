"""Which server of a cluster has a key.  No I/O.

Only the digest of a key stands between braces, so the slot follows from it alone.
"""

from __future__ import annotations

from binascii import crc_hqx

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.stores.redis.url import Address

SLOTS = 16384


def slot_of(key: bytes) -> int:
    """The slot of a key's name, or of a word that carries it."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class SlotMap:
    """The map from slots to masters, as far as it is known."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self.seeds = list(seeds)
        self.masters: dict[int, Address] = {}

    def learn(self, reply: Sequence[Any], asked: Address) -> None:
        """Take in the reply to CLUSTER SLOTS."""
        masters: dict[int, Address] = {}
        for first, last, master, *_ in reply:
            host = master[0].decode() if isinstance(master[0], bytes) else ""
            place = (host if host and host != "?" else asked[0], int(master[1]))
            for slot in range(first, last + 1):
                masters[slot] = place
        self.masters = masters

    def moved(self, slot: int, place: Address) -> None:
        self.masters[slot] = place

    def forget(self, place: Address) -> None:
        """A server is gone: ask the others who has its slots."""
        self.masters = {slot: other for slot, other in self.masters.items() if other != place}

    def places(self) -> list[Address]:
        """Whom to ask for the map: the servers known, then those configured."""
        return list(dict.fromkeys([*self.masters.values(), *self.seeds]))

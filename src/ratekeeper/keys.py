"""Keys: text, a whole number, a UUID, bytes or a tuple of them -> one dictionary key, injectively.

Text stays as it is (the hot path).  Everything else becomes tagged bytes, so no two different keys ever share a
counter: not ("a/b", "c") and ("a", "b/c"), not "1" and 1, not "a" and b"a".  A key longer than ``LONGEST`` is
replaced by its 256-bit digest, which bounds what a table stores for a key.
"""

from __future__ import annotations

import sys

from ratekeeper.errors import InvalidKey, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from uuid import UUID

    Key = str | bytes | int | UUID | tuple["Key", ...]

LONGEST = 256
KINDS = "text, a whole number, a UUID, bytes or a tuple of them"


def encode(key: Key) -> str | bytes:
    """The dictionary key of ``key``; raises InvalidKey if it is empty or of another type."""
    if isinstance(key, str):
        encoded: str | bytes = str.__str__(key) if key.__class__ is not str else key
    elif isinstance(key, (bytes, bytearray, memoryview, tuple)) and not len(key):
        encoded = b""
    else:
        tag, raw = tagged(key)
        encoded = tag + raw
    if not encoded:
        raise InvalidKey(
            f"key: expected something that names the caller, got {shown(key)}. An empty key would count all callers "
            "without an identity as one. Decide what to count for them, such as their address."
        )
    return digest(encoded) if len(encoded) > LONGEST else encoded


def tagged(part: Key) -> tuple[bytes, bytes]:
    """A letter for the type of ``part``, and its bytes."""
    if isinstance(part, str):
        return b"s", part.encode("utf-8", "surrogatepass")
    if isinstance(part, (bytes, bytearray, memoryview)):
        return b"b", bytes(part)
    if isinstance(part, int) and not isinstance(part, bool):
        return b"i", b"%x" % part
    if isinstance(part, tuple):
        return b"t", b"".join([lengthened(*tagged(inner)) for inner in part])
    if is_uuid(part):
        return b"u", part.bytes  # type: ignore[union-attr]
    raise InvalidKey(f"key: expected {KINDS} such as ('user', 42), got {type(part).__name__}.{advice(part)}")


def lengthened(tag: bytes, raw: bytes) -> bytes:
    """A part of a tuple with its length: prefix-free, so injective."""
    return b"%b%d:%b" % (tag, len(raw), raw)


def is_uuid(value: object) -> bool:
    uuid = sys.modules.get("uuid")  # slow to import, and loaded already if there is a UUID
    return uuid is not None and isinstance(value, uuid.UUID)


def advice(value: object) -> str:
    """How to make a key of ``value``, ready to be appended to a sentence."""
    if hasattr(value, "__await__"):
        return " Await it first."
    for name in ("id", "pk"):
        if hasattr(type(value), name) or name in getattr(value, "__dict__", ()):
            return f" Pass what names it, such as its {name}."
    return ""


def wire(key: str | bytes) -> bytes:
    """An encoded key as bytes, for stores that keep bytes: still injective."""
    return b"s" + key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key


def digest(key: str | bytes) -> bytes:
    from _blake2 import blake2b  # hashlib is slow to import

    return b"h" + blake2b(wire(key), digest_size=32).digest()

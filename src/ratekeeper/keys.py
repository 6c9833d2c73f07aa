"""Keys: text, bytes or a tuple of parts -> one dictionary key, injectively.

Text stays as it is (the hot path).  Everything else becomes tagged bytes, so no two different keys ever share a
counter: not ("a/b", "c") and ("a", "b/c"), not ("1",) and (1,), not "a" and b"a".  A key longer than ``LONGEST`` is
replaced by its 256-bit digest, which bounds what a table stores for a key.
"""

from __future__ import annotations

from ratekeeper.errors import InvalidKey, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    Key = str | bytes | tuple["Part", ...]
    Part = str | bytes | int | tuple["Part", ...]

LONGEST = 256


def encode(key: Key) -> str | bytes:
    """The dictionary key of ``key``; raises InvalidKey if it is empty or of another type."""
    if isinstance(key, str):
        encoded: str | bytes = str.__str__(key) if key.__class__ is not str else key
    elif isinstance(key, (bytes, bytearray, memoryview)):
        encoded = b"b" + bytes(key) if len(key) else b""
    elif isinstance(key, tuple):
        encoded = b"t" + encode_parts(key) if key else b""
    else:
        raise InvalidKey(
            "key: expected text, bytes, or a tuple of text, bytes and whole numbers such as ('user', 42), "
            f"got {type(key).__name__}."
        )
    if not encoded:
        raise InvalidKey(
            f"key: expected something that names the caller, got {shown(key)}. An empty key would count all callers "
            "without an identity as one. Decide what to count for them, such as their address."
        )
    return digest(encoded) if len(encoded) > LONGEST else encoded


def encode_parts(parts: tuple[Part, ...]) -> bytes:
    """Each part as a letter for its type, its length, and itself: prefix-free, so injective."""
    pieces = []
    for part in parts:
        if isinstance(part, str):
            tag, raw = b"s", part.encode("utf-8", "surrogatepass")
        elif isinstance(part, (bytes, bytearray, memoryview)):
            tag, raw = b"b", bytes(part)
        elif isinstance(part, int) and not isinstance(part, bool):
            tag, raw = b"i", b"%x" % part
        elif isinstance(part, tuple):
            tag, raw = b"t", encode_parts(part)
        else:
            raise InvalidKey(
                f"key: expected text, bytes, whole numbers or tuples of them in the tuple, got {type(part).__name__}."
            )
        pieces.append(b"%c%d:%b" % (tag, len(raw), raw))
    return b"".join(pieces)


def wire(key: str | bytes) -> bytes:
    """An encoded key as bytes, for stores that keep bytes: still injective."""
    return b"s" + key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key


def digest(key: str | bytes) -> bytes:
    from _blake2 import blake2b  # hashlib is slow to import

    return b"h" + blake2b(wire(key), digest_size=32).digest()

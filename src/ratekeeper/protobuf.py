"""Reads and writes the few parts of the protocol-buffer encoding that we need, without generated classes: those cost
too much for each request.
"""

from __future__ import annotations

LARGEST = 2**64 - 1


def write_varint(value: int) -> bytes:
    """Encode a whole number: seven bits a byte, the lowest first."""
    if value < 128:
        return b"%c" % value
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def write_number(field: int, value: int) -> bytes:
    """Encode a field that is a whole number; 0 is the default, and omitted."""
    return write_varint(field << 3) + write_varint(value) if value else b""


def write_bytes(field: int, value: bytes) -> bytes:
    """Encode a field that has a length: bytes, text or a message."""
    return write_varint(field << 3 | 2) + write_varint(len(value)) + value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the whole number at ``at``; returns it, and the place after it."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & LARGEST, at + place + 1
    raise ValueError("a number without end")


def read_fields(data: bytes) -> list[tuple[int, bytes | int]]:
    """Decode the fields of a message, each with its number; fields of fixed size are skipped.  Raises ValueError."""
    fields: list[tuple[int, bytes | int]] = []
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = read_varint(data, at)
            fields.append((tag >> 3, value))
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
            if at > len(data):
                raise ValueError("a number beyond the end")
        elif kind == 2:
            length, at = read_varint(data, at)
            if at + length > len(data):
                raise ValueError("a length beyond the end")
            fields.append((tag >> 3, data[at : at + length]))
            at += length
        else:
            raise ValueError("an unknown kind of field")
    return fields

"""Reservations that any worker can settle, once: the caller keeps the record of what was reserved, signed.

The store itself makes sure that a reservation is settled only once: its number is a key with a limit of one.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from os import urandom
from time import time

from ratekeeper.check import Check, LeaseCheck
from ratekeeper.errors import AlreadySettled, InvalidInput
from ratekeeper.limit import Limit, parse_limits

OPEN_FOR = 3600  # seconds in which a reservation can be settled
SETTLED = "#settled"
ONCE = Limit(1, 2 * OPEN_FOR, burst=1)


class Seal:
    """Signs and verifies the records that callers keep.  Workers with the same ``secret`` accept each other's."""

    def __init__(self, secret: bytes) -> None:
        self.key = blake2b(secret, digest_size=32, person=b"reservation").digest()

    def close(self, check: Check, at: int, number: str | None = None) -> str:
        """The signed record of what ``check`` took at the instant ``at``.

        A record with the ``number`` of another one is open for an hour from now, and settled with the other.
        """
        limit = check.limit
        parts = [str(part) for part in limit.parts]
        key = ["b", check.key.hex()] if isinstance(check.key, bytes) else ["s", check.key]
        number = number or urandom(12).hex()
        record = [number, int(time()), check.space, key, parts, check.cost, at, check.lease, check.lasts]
        body = json.dumps(record, separators=(",", ":")).encode()
        return urlsafe_b64encode(self.signature(body) + body).decode().rstrip("=")

    def open(self, text: object) -> tuple[Check, int, Check]:
        """What was reserved, when, and the check that admits only one settlement."""
        try:
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))  # type: ignore[arg-type]
            signature, body = raw[:16], raw[16:]
            if not compare_digest(signature, self.signature(body)):
                raise ValueError
            number, created, space, (kind, name), parts, cost, at, *more = json.loads(body)
            lease, lasts = (*more, 0, 0)[:2]  # older ones have neither
        except (TypeError, ValueError):
            raise InvalidInput("reservation: expected one that this service gave out, got something else.") from None
        if not 0 <= time() - created <= OPEN_FOR:
            raise AlreadySettled(f"reservation: expected to be settled within {OPEN_FOR} s. It stays as it was taken.")
        key = bytes.fromhex(name) if kind == "b" else name
        limit = parse_limits(parts)
        check = LeaseCheck(space, key, limit, cost, None, lease, lasts) if lease else Check(space, key, limit, cost)
        return check, at, Check(SETTLED, number, ONCE, 1)

    def signature(self, body: bytes) -> bytes:
        return blake2b(body, key=self.key, digest_size=16).digest()


def difference(check: Check, actual: int) -> tuple[str, Check] | None:
    """The operation and check that correct a reservation to ``actual``: refund or debit; None if nothing differs."""
    if actual == check.cost:
        return None
    operation = "refund" if actual < check.cost else "debit"
    return operation, Check(check.space, check.key, check.limit, abs(check.cost - actual))

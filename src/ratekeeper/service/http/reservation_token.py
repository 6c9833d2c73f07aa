"""Reservations that any worker can settle, once: the caller carries what was reserved, sealed.

That a reservation is settled only once is decided by the store itself, as a limit of one for its number.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from os import urandom
from time import time
from typing import Any

from ratekeeper.check import Check
from ratekeeper.errors import AlreadySettled, InvalidInput
from ratekeeper.limit import Limit, parse_limits

OPEN_FOR = 3600  # seconds in which a reservation can be settled
SETTLED = "#settled"
ONCE = Limit(1, 2 * OPEN_FOR, burst=1)


class Seal:
    """Seals what a caller carries for us.  Workers that share ``secret`` read each other's."""

    def __init__(self, secret: bytes) -> None:
        self.key = blake2b(secret, digest_size=32, person=b"reservation").digest()

    def close(self, check: Check, at: int) -> str:
        """The sealed record of what ``check`` took at the instant ``at``."""
        limit = check.limit
        parts = [str(part) for part in limit.parts]
        key = ["b", check.key.hex()] if isinstance(check.key, bytes) else ["s", check.key]
        record = [urandom(12).hex(), int(time()), check.space, key, parts, check.cost, at]
        body = json.dumps(record, separators=(",", ":")).encode()
        return urlsafe_b64encode(self.mark(body) + body).decode().rstrip("=")

    def open(self, text: object) -> tuple[Check, int, Check]:
        """What was reserved, when, and the check that admits one settlement only."""
        try:
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))  # type: ignore[arg-type]
            mark, body = raw[:16], raw[16:]
            if not compare_digest(mark, self.mark(body)):
                raise ValueError
            number, made, space, (kind, name), parts, cost, at = json.loads(body)
        except (TypeError, ValueError):
            raise InvalidInput("reservation: expected one that this service gave out, got something else.") from None
        if not 0 <= time() - made <= OPEN_FOR:
            raise AlreadySettled(f"reservation: expected to be settled within {OPEN_FOR} s. It stays as it was taken.")
        key = bytes.fromhex(name) if kind == "b" else name
        return Check(space, key, parse_limits(parts), cost), at, Check(SETTLED, number, ONCE, 1)

    def mark(self, body: bytes) -> bytes:
        return blake2b(body, key=self.key, digest_size=16).digest()


def difference(check: Check, actual: int) -> tuple[str, Check] | None:
    """What to ask the store so that ``actual`` was taken: refund or take; None if nothing is left to do."""
    if actual == check.cost:
        return None
    operation: Any = "refund" if actual < check.cost else "take"
    return operation, Check(check.space, check.key, check.limit, abs(check.cost - actual))

"""Random changes of the inputs that are there, without any guidance: for where there is no atheris."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

INTERESTING = (
    b"\0",
    b"\xff",
    b"\r\n",
    b"\n",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"-1",
    b"99999999999999999999",
    b"%00",
    b"\xed\xa0\x80",
)


def mutated(rng: random.Random, seeds: Sequence[bytes], longest: int) -> bytes:
    """One of the seeds with a few bytes changed, taken out, repeated, or taken from another."""
    changed = bytearray(rng.choice(seeds))
    for _ in range(1 + rng.randrange(6)):
        at, size = rng.randrange(len(changed) + 1), 1 + rng.randrange(12)
        match rng.randrange(6):
            case 0:
                changed[at:at] = rng.randbytes(size)
            case 1:
                del changed[at : at + size]
            case 2 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 3:
                changed[at:at] = rng.choice(INTERESTING)
            case 4:
                changed[at:at] = changed[at : at + size] * (1 + rng.randrange(8))
            case _:
                other = rng.choice(seeds)
                start = rng.randrange(len(other) + 1)
                changed[at : at + size] = other[start : start + 4 * size]
    return bytes(changed[:longest])


def run(check: Callable[[bytes], None], seeds: Sequence[bytes], seconds: float, seed: int, longest: int) -> int:
    """How many inputs were tried; the first that fails raises, with the input in ``error.__notes__``."""
    rng = random.Random(seed)
    until, tried = time.monotonic() + seconds, 0
    inputs = list(seeds) or [b""]
    while time.monotonic() < until:
        data = inputs[tried] if tried < len(inputs) else mutated(rng, inputs, longest)
        tried += 1
        try:
            check(data)
        except BaseException as error:
            error.add_note(f"input {data.hex()}")
            raise
    return tried

"""A table in shared memory with any bytes in it: refused, or answered; never a crash or a wait without end."""

from __future__ import annotations

import os
import shutil

from fuzz.choices import Choices
from ratekeeper import Limiter
from ratekeeper.errors import InvalidStore, StoreUnavailable
from ratekeeper.stores import shared_files as files

LIMITS: list[list[str]] = [
    ["5/minute"],
    ["5/minute sliding_window slices 4"],
    ["5/minute sliding_log"],
    ["5/minute fixed_window"],
    ["3 concurrent"],
    ["5/minute", "9/hour sliding_log"],
]
KEYS = 20
NAME = f"fuzz-{os.getpid()}"


def check(data: bytes) -> None:
    choices = Choices(data)
    limits, is_open = choices.of(LIMITS), choices.number() % 2
    store = f"shm://{NAME}?max_keys={KEYS}"
    try:
        limiter = Limiter(limits, store=store)
        limiter.check("before")
        if not is_open:
            limiter.close()
        (path,) = files.table_files(files.folder_of(NAME))
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            while choices:
                head = choices.number() % 4 == 0
                at = choices.number(3) % (files.HEAD if head else size - files.HEAD) + (0 if head else files.HEAD)
                file.seek(at)
                file.write(choices.piece(32)[: size - at])
        for number in range(3):
            try:
                if not is_open:
                    limiter = Limiter(limits, store=store)
                back = limiter.peek if "concurrent" in limits[0] else limiter.refund
                for call in (limiter.check, limiter.peek, back, limiter.reset, limiter.check):
                    answer = call(f"key {number}")
                    if answer is not None:
                        assert min(answer.remaining, answer.reset_after) >= 0
            except (InvalidStore, StoreUnavailable):
                pass
        limiter.close()
    finally:
        shutil.rmtree(files.folder_of(NAME), ignore_errors=True)

"""Long work in a thread, in short turns, so that other threads wait little for the interpreter.

A thread that computes keeps the interpreter for a whole switch interval whenever another one asks for it, and for as
long as the system lets it wait for a processor.  Reading and compiling thousands of rules takes most of a second of
that.  So the thread pauses between two rules, and requests are decided meanwhile.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from math import inf
from time import perf_counter, sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN = 0.0002  # seconds: two or three rules
PAUSE = 0.001


class ThreadTurn(threading.local):
    ends_at = inf  # in a thread that has not asked for short turns


turn = ThreadTurn()


@contextmanager
def short_turns() -> Iterator[None]:
    """Let this thread pause at each ``pause`` that comes after the end of its turn."""
    turn.ends_at = perf_counter() + TURN
    try:
        yield
    finally:
        turn.ends_at = inf


def pause() -> None:
    """A point where long work may be interrupted."""
    if perf_counter() >= turn.ends_at:
        sleep(PAUSE)
        turn.ends_at = perf_counter() + TURN  # from when this thread has the interpreter again

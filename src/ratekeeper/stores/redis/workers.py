"""Threads that run calls at once, next to the thread of a caller.

They are daemons of their own, never those of the application: a name server or a node that hangs keeps nothing waiting
but the call itself.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_FOR = 10.0  # seconds after which a thread without work ends


class Workers:
    """As many threads as there are calls under way, used again.  A call raises nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.lock = threading.Lock()
        self.idle = 0  # threads that wait for a call, less the calls that they were promised

    def start(self, call: Callable[[], None]) -> None:
        """Run ``call`` in a thread, at once."""
        with self.lock:
            is_new = self.idle == 0
            if not is_new:
                self.idle -= 1
        self.calls.put(call)
        if is_new:
            threading.Thread(target=self.work, name=self.name, daemon=True).start()

    def work(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=IDLE_FOR)
            except Empty:
                with self.lock:
                    if self.idle:
                        self.idle -= 1
                        return
                continue  # a call was promised at this instant
            call()
            del call  # and what it refers to
            with self.lock:
                self.idle += 1

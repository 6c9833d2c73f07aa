"""Reloads a policy when its file changes, from a thread.  The thread ends with the policy, and survives a fork."""

from __future__ import annotations

import logging
import threading
from os import register_at_fork
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from ratekeeper.errors import InvalidInput, shown
from ratekeeper.rules.short_turns import short_turns
from ratekeeper.stores.options import is_number

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ratekeeper.rules.policy import Policy

log = logging.getLogger("ratekeeper")
watchers: WeakSet[Watcher] = WeakSet()


class Watcher:
    """Looks at the file every so many seconds, and reloads the policy when the file has changed.

    An invalid file is logged once; the old rules stay until the file changes again.
    """

    def __init__(self, policy: Policy, every: float, on_error: Callable[[Exception], object] | None) -> None:
        if policy.path is None:
            raise InvalidInput("watch: expected a policy that was loaded from a file. Use Policy.load.")
        if not (is_number(every) and every > 0):
            raise InvalidInput(f"watch: expected seconds above 0, got {shown(every)}.")
        self.policy = ref(policy)
        self.every = every
        self.on_error = on_error
        self.seen = stamp(policy.path)
        self.stopped = threading.Event()
        self.start()
        watchers.add(self)

    def start(self) -> None:
        threading.Thread(target=self.run, name="ratekeeper-watch", daemon=True).start()

    def run(self) -> None:
        while not self.stopped.wait(self.every):
            if not self.look():
                return

    def look(self) -> bool:
        """Reload if the file has changed; False once the policy is gone."""
        policy = self.policy()
        if policy is None or policy.path is None:
            return False
        now = stamp(policy.path)
        if now == self.seen:
            return True
        self.seen = now
        try:
            with short_turns():  # this is a thread beside those of the application
                policy.reload()
        except Exception as error:  # nothing that is wrong with the file may stop the rules in force
            log.error("rules not reloaded, the old ones stay: %s", error)
            if self.on_error is not None:
                self.on_error(error)
        else:
            log.info("rules reloaded: %d rules from %s", len(policy.rules), policy.path.name)
        return True

    def stop(self) -> None:
        self.stopped.set()
        watchers.discard(self)


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or replaced; None while there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def after_fork() -> None:
    for watcher in list(watchers):
        watcher.stopped = threading.Event()
        watcher.start()


register_at_fork(after_in_child=after_fork)

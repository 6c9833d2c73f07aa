"""``--workers N``: one process that starts the workers, hands signals on, and replaces a worker that dies.

Whatever happens to it is a byte in one pipe: the number of a signal, or OPENED from a worker.  It takes them one after
the other, so that nothing falls between two of its lines.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput
from ratekeeper.rules.files import read
from ratekeeper.rules.parse import parse
from ratekeeper.service.options import Options
from ratekeeper.service.systemd import notify, reloading, watchdog
from ratekeeper.service.worker import SIGNALS, Worker, bound, run

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("ratekeeper")
OPENED = 0  # no signal has this number
SOONEST = 1.0  # seconds between two starts of one worker
GRACE = 5.0  # seconds that a worker may take to end, beyond what it was given to drain and to finish


class Supervisor:
    """The parent of all workers.  It binds the addresses, so that a port 0 is the same one for all."""

    def __init__(self, options: Options, opened: Callable[[dict[str, tuple[str, int]]], object]) -> None:
        self.opened = opened
        self.secret = os.urandom(32)
        self.held = []
        addresses = {}
        for name in ("http", "grpc", "resp"):
            address = getattr(options, name)
            if address is not None:
                self.held.append(bound(address, f"--{name}", shared=True))  # held, never listened on
                host, port = self.held[-1].getsockname()[:2]
                addresses[name] = (host, port)
                found: Any = {name: f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
                options = replace(options, **found)
        self.options = options
        self.addresses = addresses
        self.workers: dict[int, int] = {}  # number by process
        self.due = dict.fromkeys(range(options.workers), 0.0)  # when each worker that does not run is to be started
        self.soonest: dict[int, float] = {}  # and when at the soonest
        self.yet = options.workers  # how many doors are to open before we say that we are ready
        self.is_ending = False
        self.until = float("inf")  # when workers that were told to end are made to
        self.code = 0

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit code."""
        self.reader, self.writer = os.pipe()  # what happens
        self.lifeline, self.lifeline_held = os.pipe()  # nothing is written: it ends with us, and workers see that
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)
        for what in (*SIGNALS, signal.SIGCHLD):
            signal.signal(what, lambda *_: None)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        every = watchdog()
        try:
            while self.workers or self.due:
                if every is not None:
                    notify("WATCHDOG=1")
                self.start_due()
                for happened in self.wait(float("inf") if every is None else min(1.0, every / 3)):
                    self.take(happened)
                self.bury()
                if time.monotonic() >= self.until:
                    log.error("%d workers did not end in time; they are killed", len(self.workers))
                    self.tell(signal.SIGKILL)
                    self.until = float("inf")
        finally:
            signal.set_wakeup_fd(-1)
            self.tell(signal.SIGTERM)
        return self.code

    def wait(self, longest: float) -> bytes:
        """What happened, in order; comes back with the first of it, or when there is something to do."""
        seconds = min(longest, min([*self.due.values(), self.until], default=longest) - time.monotonic())
        ready, _, _ = select.select([self.reader], [], [], None if seconds == float("inf") else max(seconds, 0.0))
        return os.read(self.reader, 4096) if ready else b""

    def take(self, happened: int) -> None:
        if happened == OPENED:
            self.yet -= 1
            if self.yet == 0:
                self.opened(self.addresses)
                notify("READY=1", f"MAINPID={os.getpid()}")
        elif happened == signal.SIGHUP:
            self.reload()
        elif happened in (signal.SIGTERM, signal.SIGINT):
            self.end()

    def start_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, when in self.due.items() if when <= now]:
            del self.due[number]
            self.start(number)

    def start(self, number: int) -> None:
        started = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the worker lets them in when it can take them
        process = os.fork()
        if process:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self.workers[process] = number
            self.soonest[number] = started + SOONEST
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for what in (*SIGNALS, signal.SIGCHLD):
                signal.signal(what, signal.SIG_DFL)
            os.close(self.reader)
            os.close(self.lifeline_held)
            os.environ.pop("NOTIFY_SOCKET", None)  # the master speaks for all
            run(self.options, number, self.secret, self.say_opened, self.lifeline)
            code = 0
        except InvalidInput as error:
            log.error("worker %d cannot open its doors: %s", number, error)
        except BaseException:
            log.exception("worker %d failed", number)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def say_opened(self, worker: Worker) -> None:
        with suppress(OSError):
            os.write(self.writer, bytes([OPENED]))

    def bury(self) -> None:
        """Take note of the workers that ended, and have them replaced."""
        while self.workers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            number = self.workers.pop(process, None)
            if number is None or self.is_ending:
                continue
            code = os.waitstatus_to_exitcode(status)
            if code == 1 and self.yet == self.options.workers:  # none could even start: nor will another
                self.code = 1
                self.end()
                continue
            log.error("worker %d ended with %d; it is replaced", number, code)
            self.due[number] = self.soonest[number]  # one that cannot start must not keep us busy

    def end(self) -> None:
        if self.is_ending:
            return
        self.is_ending = True
        notify("STOPPING=1")
        self.due.clear()
        self.until = time.monotonic() + self.options.drain + self.options.patience + GRACE
        self.tell(signal.SIGTERM)

    def reload(self) -> None:
        """Hand the signal on only if the file can be taken: then all workers take it."""
        reloading()
        path = self.options.rules
        try:
            if path is not None:
                parse(read(path), path.name, None, path.parent)
            self.tell(signal.SIGHUP)
        except InvalidInput as error:
            log.error("rules not reloaded, the old ones stay: %s", error)
        notify("READY=1")

    def tell(self, what: signal.Signals) -> None:
        for process in list(self.workers):
            with suppress(ProcessLookupError):
                os.kill(process, what)

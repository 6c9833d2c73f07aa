"""``--workers N``: one process that starts the workers, passes signals on, and replaces a worker that dies.

Every event is one byte in one pipe: the number of a signal, or OPENED from a worker.  The supervisor takes them one
after the other, so no event can come between two of its steps.
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
from ratekeeper.rules.short_turns import short_turns
from ratekeeper.service.decider import expect_requests
from ratekeeper.service.options import Options
from ratekeeper.service.systemd import notify, notify_reloading, watchdog
from ratekeeper.service.worker import SIGNALS, Worker, bind, run

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("ratekeeper")
OPENED = 0  # no signal has this number
RESTART_AFTER = 1.0  # seconds, at least, between two starts of one worker
GRACE = 5.0  # seconds that a worker may take to end, beyond its time to drain and to finish


class Supervisor:
    """The parent of all workers.  It binds the addresses, so that port 0 is the same port for all."""

    def __init__(self, options: Options, on_ready: Callable[[dict[str, tuple[str, int]]], object]) -> None:
        self.on_ready = on_ready
        self.secret = os.urandom(32)
        self.sockets = []
        addresses = {}
        for name in ("http", "grpc", "resp"):
            address = getattr(options, name)
            if address is not None:
                self.sockets.append(bind(address, f"--{name}", shared=True))  # reserves the port; never listens
                host, port = self.sockets[-1].getsockname()[:2]
                addresses[name] = (host, port)
                bound: Any = {name: f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
                options = replace(options, **bound)
        self.options = options
        self.addresses = addresses
        self.workers: dict[int, int] = {}  # the number of each worker, by process id
        self.start_at = dict.fromkeys(range(options.workers), 0.0)  # of each worker that does not run
        self.earliest: dict[int, float] = {}  # the earliest next start of each worker
        self.unopened = options.workers  # workers that have to open their listeners before the service is ready
        self.is_ending = False
        self.kill_at = float("inf")  # when workers that were asked to end are killed
        self.code = 0

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit code."""
        self.reader, self.writer = os.pipe()  # for events
        self.lifeline, self.lifeline_writer = (
            os.pipe()
        )  # never written to: closes with this process, and workers see it
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        every = watchdog()
        try:
            while self.workers or self.start_at:
                if every is not None:
                    notify("WATCHDOG=1")
                self.start_due()
                for event in self.wait(float("inf") if every is None else min(1.0, every / 3)):
                    self.on_event(event)
                self.reap()
                if time.monotonic() >= self.kill_at:
                    log.error("%d workers did not end in time and are killed", len(self.workers))
                    self.signal_workers(signal.SIGKILL)
                    self.kill_at = float("inf")
        finally:
            signal.set_wakeup_fd(-1)
            self.signal_workers(signal.SIGTERM)
        return self.code

    def wait(self, longest: float) -> bytes:
        """Wait for events, or until a worker is due to be started or killed; returns the events in order."""
        due_at = min([*self.start_at.values(), self.kill_at], default=longest)
        seconds = min(longest, due_at - time.monotonic())
        ready, _, _ = select.select([self.reader], [], [], None if seconds == float("inf") else max(seconds, 0.0))
        return os.read(self.reader, 4096) if ready else b""

    def on_event(self, event: int) -> None:
        if event == OPENED:
            self.unopened -= 1
            if self.unopened == 0:
                self.on_ready(self.addresses)
                notify("READY=1", f"MAINPID={os.getpid()}")
        elif event == signal.SIGHUP:
            self.reload()
        elif event in (signal.SIGTERM, signal.SIGINT):
            self.end()

    def start_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, at in self.start_at.items() if at <= now]:
            del self.start_at[number]
            self.start(number)

    def start(self, number: int) -> None:
        started_at = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the worker unblocks them when it can take them
        process = os.fork()
        if process:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self.workers[process] = number
            self.earliest[number] = started_at + RESTART_AFTER
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for signal_number in (*SIGNALS, signal.SIGCHLD):
                signal.signal(signal_number, signal.SIG_DFL)
            os.close(self.reader)
            os.close(self.lifeline_writer)
            os.environ.pop("NOTIFY_SOCKET", None)  # only the supervisor talks to systemd
            run(self.options, number, self.secret, self.report_opened, self.lifeline)
            code = 0
        except InvalidInput as error:
            log.error("worker %d cannot open its listeners: %s", number, error)
        except BaseException:
            log.exception("worker %d failed", number)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def report_opened(self, worker: Worker) -> None:
        with suppress(OSError):
            os.write(self.writer, bytes([OPENED]))

    def reap(self) -> None:
        """Collect the workers that have ended, and schedule their replacements."""
        while self.workers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            number = self.workers.pop(process, None)
            if number is None or self.is_ending:
                continue
            code = os.waitstatus_to_exitcode(status)
            if code == 1 and self.unopened == self.options.workers:  # no worker could start, nor would another
                self.code = 1
                self.end()
                continue
            log.error("worker %d ended with exit code %d and is replaced", number, code)
            self.start_at[number] = self.earliest[number]  # a worker that cannot start must not be started in a loop

    def end(self) -> None:
        if self.is_ending:
            return
        self.is_ending = True
        notify("STOPPING=1")
        self.start_at.clear()
        self.kill_at = time.monotonic() + self.options.drain + self.options.patience + GRACE
        self.signal_workers(signal.SIGTERM)

    def reload(self) -> None:
        """Pass the signal on if the rules file has no mistake: then every worker can read it."""
        notify_reloading()
        path = self.options.rules
        try:
            if path is not None:
                with short_turns():  # the workers need the processor for requests
                    expect_requests(parse(read(path), path.name, None, path.parent))
            self.signal_workers(signal.SIGHUP)
        except InvalidInput as error:
            if self.options.tls_cert is not None:  # the workers say the same, and renew their certificates
                self.signal_workers(signal.SIGHUP)
            else:
                log.error("rules not reloaded, the present rules stay: %s", error)
        notify("READY=1")

    def signal_workers(self, number: signal.Signals) -> None:
        for process in list(self.workers):
            with suppress(ProcessLookupError):
                os.kill(process, number)

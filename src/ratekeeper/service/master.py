"""``--workers N``: one process that starts the workers, hands signals on, and replaces a worker that dies."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ratekeeper import config
from ratekeeper.errors import InvalidInput, InvalidRules
from ratekeeper.service.notify import notify, reloading, watchdog
from ratekeeper.service.options import Options
from ratekeeper.service.worker import Worker, bound, run
from ratekeeper.shape import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

log = logging.getLogger("ratekeeper")
SOONEST = 1.0  # seconds between two starts of one worker


class Master:
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
        self.started: dict[int, float] = {}
        self.is_ending = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self.end)
        signal.signal(signal.SIGINT, self.end)
        signal.signal(signal.SIGHUP, self.reload)
        reader, self.writer = os.pipe()
        for number in range(self.options.workers):
            self.start(number)
        for _ in range(self.options.workers):  # each says when its doors are open
            if not os.read(reader, 1):
                break
        self.opened(self.addresses)
        notify("READY=1", f"MAINPID={os.getpid()}")
        every = watchdog()
        while self.workers:
            if every is not None:
                notify("WATCHDOG=1")
            try:
                process, status = os.waitpid(-1, os.WNOHANG if every is not None else 0)
            except InterruptedError:
                continue
            except ChildProcessError:
                break
            if process == 0:
                time.sleep(min(1.0, every / 3) if every else 1.0)
                continue
            self.buried(process, status)
        return 0

    def start(self, number: int) -> None:
        self.started[number] = time.monotonic()
        process = os.fork()
        if process:
            self.workers[process] = number
            return
        code = 1
        try:
            os.environ.pop("NOTIFY_SOCKET", None)  # the master speaks for all
            for name in ("SIGTERM", "SIGINT", "SIGHUP"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            run(self.options, number, self.secret, self.say_ready)
            code = 0
        except BaseException:
            log.exception("worker %d failed", number)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def say_ready(self, worker: Worker) -> None:
        with suppress(OSError):
            os.write(self.writer, b".")

    def buried(self, process: int, status: int) -> None:
        number = self.workers.pop(process, None)
        if number is None or self.is_ending:
            return
        log.error("worker %d ended with %d; it is replaced", number, os.waitstatus_to_exitcode(status))
        wait = self.started[number] + SOONEST - time.monotonic()
        if wait > 0:  # a worker that cannot start must not keep us busy
            time.sleep(wait)
        self.start(number)

    def end(self, number: int, frame: FrameType | None) -> None:
        self.is_ending = True
        notify("STOPPING=1")
        self.tell(signal.SIGTERM)

    def reload(self, number: int, frame: FrameType | None) -> None:
        """Hand the signal on only if the file can be taken: then all workers take it."""
        reloading()
        path = self.options.rules
        try:
            if path is not None:
                config.parse(read(path), path.name, None, path.parent)
            self.tell(signal.SIGHUP)
        except (InvalidRules, InvalidInput) as error:
            log.error("rules not reloaded, the old ones stay: %s", error)
        notify("READY=1")

    def tell(self, what: signal.Signals) -> None:
        for process in list(self.workers):
            with suppress(ProcessLookupError):
                os.kill(process, what)

"""The line protocol, for Python targets: ``serve(Target)`` answers one JSON object a line on stdin and stdout.

A target is a class.  It is made with the address of a store (None: in memory), has ``name``, ``version`` and
``promises``, and:

    open(name, limits)         a limiter with check(key, cost) -> dict; limits are dicts as in the cases
    set_time(micros)           only if its promises say that its clock is virtual
    stored_keys()              optional: pairs of a stored key and the microseconds until it expires, or None

Only the standard library is imported here, so a program in any environment can use it.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import traceback
from typing import Any


def check(limiter: Any, key: str, cost: int) -> dict[str, Any]:
    """One answer; an exception is an answer too."""
    try:
        return dict(limiter.check(key, cost))
    except Exception as error:
        return {"allowed": False, "error": f"{type(error).__name__}: {error}"[:200]}


def burst(limiter: Any, key: str, calls: int, clients: int) -> int:
    """How many of ``calls`` are admitted, if threads make them all at once."""
    if hasattr(limiter, "burst"):  # of a target on an event loop
        return int(limiter.burst(key, calls, clients))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places as often as they can
    admitted = [0] * clients
    gate = threading.Barrier(clients)

    def work(number: int) -> None:
        gate.wait()
        for _ in range(calls // clients):
            admitted[number] += bool(check(limiter, key, 1)["allowed"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    return sum(admitted)


class LineServer:
    """One target, and the limiters that the runner opened."""

    def __init__(self, make: Any, store: str | None) -> None:
        self.target = make(store)
        self.limiters: dict[str, Any] = {}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        target, word = self.target, asked["op"]
        if word == "hello":
            return {"name": target.name, "version": target.version, "promises": target.promises}
        if word == "open":
            self.limiters[asked["name"]] = target.open(asked["name"], asked["limits"])
        elif word == "time":
            target.set_time(asked["now"])
        elif word == "check":
            return check(self.limiters[asked["limiter"]], asked["key"], asked["cost"])
        elif word == "burst":
            limiter = self.limiters[asked["limiter"]]
            return {"admitted": burst(limiter, asked["key"], asked["calls"], asked["clients"])}
        elif word == "flood":
            limiter = self.limiters[asked["limiter"]]
            for number in range(asked["keys"]):
                limiter.check(f"{asked['prefix']}{number}", 1)
        elif word == "collect":
            gc.collect()
        elif word == "stored":
            found = target.stored_keys() if hasattr(target, "stored_keys") else None
            return {"keys": found}
        else:
            return {"error": f"op: expected hello, open, time, check, burst, flood, collect or stored, got {word!r}."}
        return {"ok": True}


def serve(make: Any) -> None:
    """Answer until stdin ends.  The last argument of the program is the address of its store, if it is one."""
    server = LineServer(make, sys.argv[-1] if "://" in sys.argv[-1] else None)
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no answer
    for line in sys.stdin:
        try:
            found = server.answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()

"""Histories of many decisions under faults, for as long as you like:

    python -m tests.real.fleet_histories redis --seconds 600

Four processes of sixteen tasks check six limits.  Each call is recorded with what it was told.  Meanwhile scripts are
flushed, the server is paused, and with ``--cut`` all connections are cut.  Without cuts no reply is lost, so one order
of all calls must explain every answer (see ``linear``).  With cuts some calls may have counted without an answer, so
the admitted calls alone must keep each limit.

``--edges`` checks windows of a few milliseconds, so that most calls are the first of their window.

The clock of a virtual machine steps back now and then; how often that was seen, and by how much, is printed.
"""

import argparse
import contextlib
import os
import pickle
import random
import signal
import tempfile
import time
import uuid

from ratekeeper import Limit
from ratekeeper.stores.shared import remove
from tests.laws.models import model_of
from tests.real.fleet import record, run_fleet
from tests.real.load import Beside
from tests.real.test_fleet import TEXTS, linear
from tests.servers import Server

# Windows as short as a round trip or a few: their edges are where counters move, and where calls meet.
EDGES = [
    "4 per 2 milliseconds sliding_window",
    "9 per 7 milliseconds sliding_window",
    "12 per 9 milliseconds sliding_window slices 3",
    "40 per 20 milliseconds sliding_window",
    "4 per 3 milliseconds fixed_window",
    "6 per 5 milliseconds sliding_log",
]


def windows(limit, history):
    """How many windows, or slices of them, had calls: so many edges were crossed."""
    return len({call[5] * limit.slices // limit.micros for call in history if call[3] is not None})


class Faults(Beside):
    """Random faults of one server."""

    def __init__(self, server, cut):
        super().__init__()
        self.server, self.cut, self.times = server, cut, 0
        self.chance = random.Random(1)

    def step(self):
        if self.server is None:
            self.over.wait(0.1)
            return
        fault = self.chance.choice(["flush", "flush", "pause", *(["cut"] if self.cut else [])])
        if fault == "pause":
            os.kill(self.server.process.pid, signal.SIGSTOP)
            time.sleep(self.chance.random() * 0.1)
            os.kill(self.server.process.pid, signal.SIGCONT)
        else:
            words = ["SCRIPT", "FLUSH"] if fault == "flush" else ["CLIENT", "KILL", "TYPE", "normal"]
            with contextlib.suppress(Exception), self.server.client(socket_timeout=5) as client:
                client.execute_command(*words)
        self.times += 1
        self.over.wait(self.chance.random() * 0.05)


def bounded(limit, history):
    """Replay the admitted calls on the exact model, in the order of the server's instants; how many there were."""
    model = model_of(limit)
    admitted = sorted([call for call in history if call[3]], key=lambda call: call[5])
    for call in admitted:
        now, cost = call[5], call[2]
        assert model.fits(now, cost), f"{limit}: {call} was admitted beyond the limit"
        model.record(now, cost)
    return len(admitted)


def explain(limit, history):
    """By how many microseconds the server's clock stepped back, at most; raises if no order explains a history."""
    try:
        return linear(limit, history)[1]
    except AssertionError as error:
        path = f"{tempfile.gettempdir()}/history-{os.getpid()}.pickle"
        with open(path, "wb") as file:
            pickle.dump((str(limit), history), file)
        error.add_note(f"{limit}: the history is in {path}")
        raise


def run(kind, seconds, cut=False, each=15.0, texts=TEXTS):
    """The number of decisions; raises if one of them is wrong."""
    server = segment = None
    if kind == "shm":
        segment = f"histories-{uuid.uuid4().hex}"
        url = f"shm://{segment}?max_keys=1000"
    else:
        server = Server("valkey-server" if kind == "valkey" else "redis-server")
        url = server.url
    total = admitted = unanswered = faults = crossed = steps = longest = 0
    began = time.monotonic()
    try:
        while time.monotonic() < began + seconds:
            with Faults(server, cut) as beside:
                seen = run_fleet(record, url, uuid.uuid4().hex, texts, min(each, seconds), 0.002)
            faults += beside.times
            for index, text in enumerate(texts):
                history = [call[1:] for calls in seen for call in calls if call[0] == index]
                unanswered += sum(call[3] is None for call in history)
                limit = Limit.parse(text)
                if cut:
                    bounded(limit, history)
                else:
                    assert all(call[3] is not None for call in history), [call for call in history if call[3] is None]
                    back = explain(limit, history)
                    steps, longest = steps + (back > 0), max(longest, back)
                total += len(history)
                crossed += windows(limit, history)
                admitted += sum(call[3] is True for call in history)
            print(f"{kind}{' with cuts' if cut else ''}: {total} decisions in {crossed} windows, {admitted} admitted, "
                  f"{unanswered} without an answer, {faults} faults, {steps} histories in which the clock stepped back "
                  f"(up to {longest} us), 0 violations",
                  flush=True)  # fmt: skip
    finally:
        if server is not None:
            server.close()
        if segment is not None:
            remove(segment, force=True)
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["redis", "valkey", "shm"])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cut", action="store_true")
    parser.add_argument("--edges", action="store_true", help="windows of a few milliseconds")
    arguments = parser.parse_args()
    run(arguments.kind, arguments.seconds, arguments.cut, texts=EDGES if arguments.edges else TEXTS)

"""Callers that never pause, in threads or as tasks of a loop; every answer is kept with how long it took."""

import asyncio
import threading
import time

from ratekeeper import AsyncLimiter, Limiter


class Beside:
    """A thread that takes one ``step`` after the other for as long as a block lasts."""

    def __init__(self):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.thread.join()

    def run(self):
        while not self.over.is_set():
            self.step()


class Lag(Beside):
    """``worst``: the longest that the machine itself kept a sleeper waiting since the block was entered: not ours."""

    worst = 0.0

    def __init__(self):
        super().__init__()
        self.late = []  # when a timer was due, and when it came

    def step(self):
        due = time.monotonic() + 0.01
        time.sleep(0.01)
        self.note(due)

    def note(self, due):
        now = time.monotonic()
        self.late.append((due, now))
        self.worst = max(self.worst, now - due)

    def between(self, first, last):
        """Seconds of that time in which a timer was due and had not come."""
        return sum([max(0.0, min(came, last) - max(due, first)) for due, came in self.late])


class Load:
    """``workers`` callers of one limiter until the block is left; ``kind`` is sync or async."""

    def __init__(self, kind, limit, url, workers=16, keys=("k",), **options):
        self.kind, self.limit, self.url, self.workers, self.options = kind, limit, url, workers, options
        self.keys = keys
        self.answers = []  # (began, took, decision)
        self.errors = []
        self.over = threading.Event()
        self.watch = Lag()

    @property
    def lag(self):
        return self.watch.worst

    def __enter__(self):
        if self.kind == "sync":
            self.limiter = Limiter(self.limit, store=self.url, name="load", **self.options)
            self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(self.workers)]
        else:
            self.threads = [threading.Thread(target=lambda: asyncio.run(self.main()))]
        self.watch.__enter__()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.watch.__exit__()
        if self.kind == "sync":
            self.limiter.close()

    def run(self, number):
        try:
            for turn in range(10**9):
                began = time.monotonic()
                decision = self.limiter.check(self.keys[(number + turn) % len(self.keys)])
                self.answers.append((began, time.monotonic() - began, decision))
                if self.over.wait(0.002):
                    return
        except BaseException as error:
            self.errors.append(error)

    async def main(self):
        async with AsyncLimiter(self.limit, store=self.url, name="load", **self.options) as limiter:
            await asyncio.gather(self.task_lag(), *[self.task(limiter, number) for number in range(self.workers)])

    async def task_lag(self):
        """How late a timer of this loop is, which the callers keep busy: that is theirs, too."""
        while not self.over.is_set():
            due = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            self.watch.note(due)

    async def task(self, limiter, number):
        try:
            for turn in range(10**9):
                began = time.monotonic()
                decision = await limiter.check(self.keys[(number + turn) % len(self.keys)])
                self.answers.append((began, time.monotonic() - began, decision))
                await asyncio.sleep(0.002)
                if self.over.is_set():
                    return
        except BaseException as error:
            self.errors.append(error)

    def wait(self, wanted, seconds=30.0):
        """Seconds until an answer to a call from now on is as ``wanted``."""
        since = time.monotonic()
        seen = len(self.answers)
        while True:
            fresh = self.answers[seen:]
            seen += len(fresh)
            for began, took, decision in fresh:
                if began >= since and wanted(decision):
                    return began + took - since
            assert not self.errors, self.errors
            assert time.monotonic() < since + seconds, f"no such answer, but {self.answers[-1:]}"
            time.sleep(0.005)

    def between(self, first, last):
        """The answers to calls that began and ended in that time."""
        return [answer for answer in list(self.answers) if first <= answer[0] and answer[0] + answer[1] <= last]

    def admitted(self, by_store):
        """How many the store admitted, or else what stood in for it."""
        return sum(decision.allowed for _, _, decision in self.answers if (decision.reason == "") == by_store)

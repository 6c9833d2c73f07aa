"""Backends in this process for stores on compare-and-set: the smallest one, one with transactions, one with locks.

``Records`` is shared by stores, as a server is by processes, and can be told to fail.
"""

import asyncio
import itertools
import threading
from contextlib import contextmanager

from ratekeeper.stores import AsyncCompareAndSetStore, CompareAndSetStore


class Records:
    """What a server keeps: values and versions by name, changed one at a time."""

    def __init__(self):
        self.kept = {}
        self.lock = threading.Lock()
        self.versions = itertools.count(1)
        self.reads = self.writes = self.lost = 0
        self.lives = {}
        self.before_write = lambda name: None  # called before a write is looked at
        self.after_write = lambda name: None  # called after it was carried out
        self.on_read = lambda names: None

    def read(self, name):
        return self.kept.get(name, (None, 0))

    def write(self, name, version, value, seconds):
        assert isinstance(seconds, int)
        assert seconds >= 1
        self.before_write(name)
        with self.lock:
            if self.read(name)[1] != version:
                self.lost += 1
                return False
            self.writes += 1
            self.lives[name] = seconds
            self.kept[name] = value, next(self.versions)
        self.after_write(name)
        return True


class DictStore(CompareAndSetStore):
    """Only what a store must have."""

    def __init__(self, records=None, **options):
        super().__init__("dict://", **options)
        self.records = Records() if records is None else records

    def get(self, name):
        self.records.on_read([name])
        self.records.reads += 1
        return self.records.read(name)

    def compare_and_set(self, name, version, value, seconds):
        return self.records.write(name, version, value, seconds)


class TransactionalStore(DictStore):
    """A backend that writes several records at once."""

    def compare_and_set_all(self, changes):
        with self.records.lock:
            if any(self.records.read(change.name)[1] != change.version for change in changes):
                self.records.lost += 1
                return False
            self.records.writes += 1
            for change in changes:
                self.records.kept[change.name] = change.value, next(self.records.versions)
        return True


class LockedStore(DictStore):
    """A backend whose writers exclude each other; in a block that fails nothing is written."""

    @contextmanager
    def exclusive(self):
        with self.records.lock:
            before = dict(self.records.kept)
            try:
                yield
            except BaseException:
                self.records.kept = before
                raise

    def compare_and_set_all(self, changes):
        self.records.writes += 1
        for change in changes:
            self.records.kept[change.name] = change.value, next(self.records.versions)
        return True


class AsyncDictStore(AsyncCompareAndSetStore):
    """The smallest store for event loops.  A backend elsewhere lets other tasks run before it answers."""

    def __init__(self, records=None, **options):
        super().__init__("dict://", **options)
        self.records = Records() if records is None else records

    async def get(self, name):
        await asyncio.sleep(0)
        self.records.reads += 1
        return self.records.read(name)

    async def compare_and_set(self, name, version, value, seconds):
        await asyncio.sleep(0)
        written = self.records.write(name, version, value, seconds)
        await asyncio.sleep(0)
        return written


class AsyncTransactionalStore(AsyncDictStore):
    async def compare_and_set_all(self, changes):
        await asyncio.sleep(0)
        return TransactionalStore.compare_and_set_all(self, changes)

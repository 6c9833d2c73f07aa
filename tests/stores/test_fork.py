"""Locks that survive a fork: whatever a thread holds, a child has them free and is told."""

import gc
import os
import threading

import pytest

from ratekeeper.stores.fork import alive, keep_through_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class Owner:
    def __init__(self):
        self.lock = threading.Lock()
        self.children = 0
        keep_through_fork(self)

    def in_child(self):
        self.children += 1


def test_a_child_has_the_lock_free_and_is_told():
    owner = Owner()
    child = os.fork()
    if not child:
        os._exit(0 if owner.lock.acquire(False) and owner.children == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert owner.lock.acquire(False)
    assert owner.children == 0


def test_an_owner_that_is_gone_is_forgotten():
    owner = Owner()
    assert owner in alive()
    before = len(alive())
    del owner
    gc.collect()
    assert len(alive()) < before

"""A signal that comes while the main thread is in the middle of something."""

import contextlib
import signal
import threading

import pytest


@contextlib.contextmanager
def signalled(when, then=lambda: None, raises=None):
    """Run the block in the main thread; a signal comes after ``when()``, and ``then()`` when it was handled.

    The block must end with ``raises`` if the handler is to raise that.

    The signal is sent again and again: one that comes just before a wait begins does not end it.  Only the first one
    raises, as others may be on their way.  Nothing written in Python is called until it is handled: while the main
    thread has a signal to handle, a thread that is traced, as under coverage, would not get into it.
    """
    main, handled = threading.main_thread().ident, []

    def handle(*_):
        handled.append(True)
        if raises is not None and len(handled) == 1:
            raise raises

    def send():
        when()
        while not handled:
            signal.pthread_kill(main, signal.SIGUSR1)
        then()

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        with contextlib.nullcontext() if raises is None else pytest.raises(raises):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)

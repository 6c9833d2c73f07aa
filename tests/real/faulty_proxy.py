"""A server on the way to the server, which can swallow or delay what passes: lost replies, black holes, long ways."""

import contextlib
import queue
import random
import socket
import threading
import time


class FaultyProxy:
    """Forwards between its own port and ``port``.

    ``deaf`` swallows everything, as a network that drops packets does.  ``lose`` is how many more connections lose
    their next reply, and with it all that would follow, as TCP leaves no gaps; ``hangs_up`` closes them then.
    ``requests_late`` and ``replies_late`` are the seconds that each way takes, or up to which it takes if ``jitters``.
    ``hold`` keeps replies back until ``release``, and ``count`` says how often a word was asked: a test knows what is
    under way, however slow the machine is.
    """

    def __init__(self, port):
        self.target = ("127.0.0.1", port)
        self.deaf = False
        self.lose = 0
        self.hangs_up = False
        self.lost = 0
        self.requests_late = 0.0
        self.replies_late = 0.0
        self.jitters = False
        self.asked = []  # the parts of all requests, as they came
        self.may_reply = threading.Event()
        self.release()
        self.sockets = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def hold(self):
        self.may_reply.clear()

    def release(self):
        self.may_reply.set()

    def count(self, word=b"EVALSHA"):
        return b"".join(self.asked).count(word)

    def await_count(self, many, word=b"EVALSHA", seconds=60):
        """Wait until ``word`` was asked so often."""
        until = time.monotonic() + seconds
        while self.count(word) < many:
            assert time.monotonic() < until, f"{self.count(word)} of {many}"
            time.sleep(0.005)

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
                self.sockets += [near, far]
                threading.Thread(target=self.forward, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self.forward, args=(far, near, True), daemon=True).start()

    def forward(self, source, target, is_reply):
        cut = False
        under_way = queue.SimpleQueue()
        threading.Thread(target=self.arrive, args=(under_way, target), daemon=True).start()
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                if is_reply:
                    self.may_reply.wait()
                else:
                    self.asked.append(part)
                if is_reply and self.lose and not cut:
                    cut = True
                    self.lose -= 1
                    self.lost += 1
                    if self.hangs_up:
                        break
                if not cut and not self.deaf:
                    late = self.replies_late if is_reply else self.requests_late
                    if late:
                        late *= random.random() if self.jitters else 1
                        under_way.put((time.monotonic() + late, part))
                    else:
                        target.sendall(part)
        under_way.put(None)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def arrive(self, under_way, target):
        """Deliver what is under way, each part at its time."""
        with contextlib.suppress(OSError):
            while item := under_way.get():
                due, part = item
                time.sleep(max(0.0, due - time.monotonic()))
                target.sendall(part)

    def close(self):
        self.release()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

"""A server that greets as Redis does, and then says whatever a test wants."""

import contextlib
import random
import socket
import threading

from hiredis import HiredisError, Reader


def bulk(text):
    return b"$%d\r\n%b\r\n" % (len(text), text)


class HostileRedis:
    """Answers commands by name.  A reply is bytes, or an iterator of bytes that may be endless.

    ``opening`` is sent as soon as a client connects.  The connection ends after the reply to ``last``.
    ``sent`` is how many bytes one connection took at most.
    """

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.reset()
        threading.Thread(target=self.accept, daemon=True).start()

    def reset(self):
        self.opening, self.last, self.sent, self.seed = b"", (b"EVALSHA", b"EVAL"), 0, None
        here = b"*3\r\n:0\r\n:16383\r\n*2\r\n%b:%d\r\n" % (bulk(b"127.0.0.1"), self.port)
        self.replies = {
            b"CLIENT": b"+OK\r\n",
            b"INFO": bulk(b"role:master\r\n"),
            b"TRIAL": b"+OK\r\n",  # the script, with no keys
            b"CLUSTER": b"*1\r\n" + here,
            b"SENTINEL": b"*2\r\n" + bulk(b"127.0.0.1") + bulk(b"%d" % self.port),
            b"EVALSHA": b"+OK\r\n",
            b"EVAL": b"-ERR no\r\n",
            b"ASKING": b"+OK\r\n",
        }

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.talk, args=(self.listener.accept()[0],), daemon=True).start()

    def talk(self, near):
        reader, total = Reader(), 0
        with near, contextlib.suppress(OSError, HiredisError):  # a client of another test may find this port
            if self.opening:
                near.sendall(self.opening)
            while part := near.recv(65536):
                try:
                    reader.feed(part)
                    while (words := reader.gets()) is not False:
                        name = b"TRIAL" if words[0] == b"EVALSHA" and words[2] == b"0" else words[0]
                        for piece in self.pieces(self.replies.get(name, b"-ERR unknown\r\n")):
                            near.sendall(piece)
                            total += len(piece)
                            self.sent = max(self.sent, total)
                        if name in self.last:
                            near.shutdown(socket.SHUT_RDWR)
                except Exception:  # a client that speaks TLS
                    if not self.opening:
                        raise
                    return

    def pieces(self, reply):
        """The reply, cut at random places if there is a seed."""
        if not isinstance(reply, bytes):
            yield from reply
            return
        chance = random.Random(self.seed)
        while reply and self.seed is not None:
            size = chance.randint(1, 12)
            yield reply[:size]
            reply = reply[size:]
        yield reply

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

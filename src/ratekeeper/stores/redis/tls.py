"""A TLS session without a socket: bytes in, bytes out, for threads and event loops alike.  No I/O.

Whoever owns the socket sends what ``encrypt`` returns and hands ``decrypt`` what was read.  So an encrypted connection
is batched, shared by threads and read ahead of the loop just as a plain one.
"""

from __future__ import annotations

from ssl import MemoryBIO, SSLWantReadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ssl import SSLContext

PART = 65536  # bytes; a record has 16 KiB at most


class TlsSession:
    """One session with the server called ``host``.  Not for two threads at once.  Raises ssl.SSLError, an OSError."""

    def __init__(self, context: SSLContext, host: str) -> None:
        self.incoming, self.outgoing = MemoryBIO(), MemoryBIO()
        self.session = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)
        self.is_ready = False

    def shake_hands(self, received: bytes = b"") -> bytes:
        """What to send next; ``is_ready`` says whether the handshake is over."""
        if received:
            self.incoming.write(received)
        try:
            self.session.do_handshake()
            self.is_ready = True
        except SSLWantReadError:
            pass
        return self.outgoing.read()

    def encrypt(self, plain: bytes) -> bytes:
        written = self.session.write(plain)
        while written < len(plain):
            written += self.session.write(plain[written:])
        return self.outgoing.read()  # and what the session itself has to say

    def decrypt(self, received: bytes) -> bytes:
        """All that can be read by now; empty as long as a record is not complete."""
        incoming, read = self.incoming, self.session.read
        incoming.write(received)
        parts = []
        try:
            while True:
                part = read(PART)
                if not part:
                    raise ConnectionResetError("the connection was closed")
                parts.append(part)
                if not incoming.pending and not self.session.pending():  # else reading on would raise, which is slow
                    break
        except SSLWantReadError:
            pass
        return b"".join(parts)

"""``ratekeeper serve`` as a process of its own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

from tests.real.proxies import call, free_port


class Command:
    def __init__(self, folder, *words, environment=None):
        self.port = free_port()
        self.log = (folder / "serve.log").open("wb")
        self.path = folder / "serve.log"
        command = [sys.executable, "-m", "ratekeeper", "serve", *map(str, words), "--http", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, env={**os.environ, **(environment or {})}
        )
        until = time.monotonic() + 30
        while True:
            try:
                if call(self.port, "GET", "/readyz")[0] == 200:
                    return
            except OSError:
                assert self.process.poll() is None, self.text()
                assert time.monotonic() < until, self.text()
            time.sleep(0.05)

    def text(self):
        return self.path.read_text(errors="replace")

    def workers(self):
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(word) for word in found.stdout.split()]

    def memory(self):
        """Bytes that all its processes hold."""
        total = 0
        for process in [self.process.pid, *self.workers()]:
            with open(f"/proc/{process}/statm") as file:
                total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return total

    def signal(self, what):
        self.process.send_signal(what)

    def close(self):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:  # one that does not end is not left behind
            self.process.kill()
            self.process.wait()
            self.log.close()


@contextmanager
def serving(folder, *words, environment=None):
    made = Command(folder, *words, environment=environment)
    try:
        yield made
    finally:
        made.close()

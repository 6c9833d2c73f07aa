"""Python processes that tests share: to start one takes longer than most scripts do."""

import json
import subprocess
import sys

LOOP = """
import io, json, sys, traceback, warnings
from contextlib import redirect_stdout

warnings.simplefilter("ignore")  # scripts fork while threads run: that is their point
names = {}
for line in sys.stdin:
    script, fresh = json.loads(line)
    if fresh:
        names = {"__name__": "__main__"}
    printed, failed = io.StringIO(), ""
    with redirect_stdout(printed):
        try:
            exec(script, names)
        except BaseException:
            failed = traceback.format_exc()
    print(json.dumps([printed.getvalue(), failed]), flush=True)
"""


class Interpreter:
    """A process that runs one script after the other; each begins with names of its own, unless it goes on."""

    def __init__(self):
        words = [sys.executable, "-c", LOOP]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self, script, fresh=True):
        self.process.stdin.write(json.dumps([script, fresh]) + "\n")
        self.process.stdin.flush()

    def end(self):
        """What the script printed."""
        printed, failed = json.loads(self.process.stdout.readline())
        assert not failed, failed
        return printed

    def run(self, script):
        self.begin(script)
        return self.end()

    def close(self):
        self.process.communicate()


def at_once(interpreters, script, fresh=True):
    """The same script in several processes at the same time; what each printed."""
    for interpreter in interpreters:
        interpreter.begin(script, fresh)
    return [interpreter.end() for interpreter in interpreters]

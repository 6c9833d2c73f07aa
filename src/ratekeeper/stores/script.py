"""One script out of the Lua twins and the driver: what the server runs.

A twin is made into functions only when a plan needs its rule: making all of them at every call would cost the
server more than deciding.  The server's clock is read once; a store that was given a clock sends its own time.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files

# A letter for each rule, as the driver knows it.  w is a long log, read and written whole.
KINDS = {
    "gcra": "g",
    "token_bucket": "t",
    "leaky_bucket": "l",
    "fixed_window": "f",
    "sliding_window": "s",
    "sliding_log": "d",
    "concurrency": "c",
}
SERVER_TIME = "local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n"
GIVEN_TIME = "local now = table.remove(ARGV, 1) + 0\n"


def twin(name: str) -> str:
    return files("ratekeeper.algorithms").joinpath(f"{name}.lua").read_text("utf-8")


def rules() -> str:
    """``rule(kind)``: the twin of that letter, as ``decide, refund``."""
    branches = []
    for name, letter in KINDS.items():
        letters = f"kind == '{letter}'" + (" or kind == 'w'" if name == "sliding_log" else "")
        branches.append(f"if {letters} then\n{twin(name)}\nend\n")
    return "local function rule(kind)\n" + "".join(branches) + "end\n"


def compose(*, given_time: bool = False) -> Script:
    driver = files("ratekeeper.stores").joinpath("redis.lua").read_text("utf-8")
    nothing = (b"0", b"states", b"0") if given_time else (b"states", b"0")
    return Script((GIVEN_TIME if given_time else SERVER_TIME) + rules() + driver, nothing)


class Script:
    """A script's text, the digest by which a server that has it runs it, and words that ask it for nothing."""

    __slots__ = ("nothing", "sha", "text")

    def __init__(self, text: str, nothing: tuple[bytes, ...]) -> None:
        self.text = text.encode()
        self.nothing = nothing
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()

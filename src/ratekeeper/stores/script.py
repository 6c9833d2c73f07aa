"""One script out of the Lua twins and the driver: what the server runs.

``redis.lua`` says how it is put together: a line ``-- include NAME`` stands for a file beside it or beside the rules,
or for one of the pieces that are made here.

To make a function costs a server as much as to decide a limit, and so does letting one refer to the locals of another.
So a twin is made only when a plan needs its rule, and a local in capitals is a constant that is written in where it is
used.  Comments and indentation stay here.
"""

from __future__ import annotations

import re
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
# The server's clock is read once; a store that was given a clock sends its own time.
SERVER_TIME = "local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n"
GIVEN_TIME = "local now = table.remove(ARGV, 1) + 0\n"

INCLUDE = re.compile(r"^ *-- include (\S+)\n", re.MULTILINE)
COMMENT = re.compile(r"^ *--(?! include ).*\n| --(?! include ).*$", re.MULTILINE)
CONSTANT = re.compile(r"^ *local ([A-Z][A-Z_]*) = (.+)\n", re.MULTILINE)


def twin(name: str) -> str:
    text = files("ratekeeper.algorithms").joinpath(f"{name}.lua").read_text("utf-8")
    if name == "concurrency":
        text = twin("sliding_log").removesuffix("return decide, refund\n") + text
    return text


def rules(*, refunds: bool = True) -> str:
    """The body of ``rule(kind)``: a branch for each letter, which returns decide and refund of its twin."""
    branches = []
    for name, letter in KINDS.items():
        letters = f"kind == '{letter}'" + (" or kind == 'w'" if name == "sliding_log" else "")
        text = with_constants(COMMENT.sub("", twin(name)))
        if not refunds:
            text = text.partition("\nlocal function refund(")[0].removesuffix("return decide\n") + "return decide\n"
        branches.append(f"if {letters} then\n{text}end\n")
    return "".join(branches)


def text_of(name: str, pieces: dict[str, str]) -> str:
    """A piece, or a file of the driver, with what it includes in its places."""
    if name in pieces:
        return pieces[name]
    place = "ratekeeper.algorithms" if name == "several.lua" else "ratekeeper.stores"
    text = COMMENT.sub("", files(place).joinpath(name).read_text("utf-8"))
    text = INCLUDE.sub(lambda found: text_of(found[1], pieces), text)
    return with_constants(text)


def with_constants(text: str) -> str:
    """A text with its constants written in where they are used."""
    while constant := CONSTANT.search(text):
        text = text[: constant.start()] + text[constant.end() :]
        text = re.sub(rf"\b{constant[1]}\b", f"({constant[2]})", text)
    return text


def compose(*, given_time: bool = False) -> Script:
    pieces = {
        "now": GIVEN_TIME if given_time else SERVER_TIME,
        "rules": rules(refunds=False),
        "rules-and-refunds": rules(),
    }
    nothing = (b"0", b"states", b"0") if given_time else (b"states", b"0")
    lines = [line.strip() for line in text_of("redis.lua", pieces).splitlines()]
    return Script("\n".join([line for line in lines if line]), nothing)


class Script:
    """A script's text, the digest by which a server that has it runs it, and words that ask it for nothing."""

    __slots__ = ("nothing", "sha", "text")

    def __init__(self, text: str, nothing: tuple[bytes, ...]) -> None:
        self.text = text.encode()
        self.nothing = nothing
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()

"""One script out of the Lua twins and the driver: what the server runs.

``redis.lua`` says how it is put together: a line ``-- include NAME`` stands for a file beside it or beside the rules,
or for one of the pieces that are made here.

To make a function costs a server as much as to decide a limit, to call one hardly less, and so does letting one refer
to the locals of another.  So the twins' ``decide`` is written in where a limit is decided, functions that are needed at
times are made then, and a local in capitals is a constant that is written in too.  Comments and indentation stay here.
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

# Whose decide serves which letters, the most used first.
BODIES = {
    "gcra": "g",
    "token_bucket": "t",
    "fixed_window": "f",
    "sliding_window": "s",
    "sliding_log": "dwc",
    "leaky_bucket": "l",
}

INCLUDE = re.compile(r"^ *-- include (\S+)\n", re.MULTILINE)
COMMENT = re.compile(r"^ *--(?! include ).*\n| --(?! include ).*$", re.MULTILINE)
IMPORTS = "local pack, unpack, values = struct.pack, struct.unpack, unpack\n"  # the driver has them too
RETURN = re.compile(r"^ *return (.+, (?:true|false), .+)$", re.MULTILINE)
CONSTANT = re.compile(r"^ *local ([A-Z][A-Z_]*) = (.+)\n", re.MULTILINE)


def twin(name: str) -> str:
    """The text of a twin, to stand where the driver's imports do."""
    text = with_constants(COMMENT.sub("", files("ratekeeper.algorithms").joinpath(f"{name}.lua").read_text("utf-8")))
    if name == "concurrency":
        text = twin("sliding_log").removesuffix("return decide, refund\n") + text
    return text.replace(IMPORTS, "")


def rules() -> str:
    """The body of ``rule(kind)``: a branch for each letter, which returns decide and refund of its twin."""
    branches = []
    for name, letter in KINDS.items():
        letters = f"kind == '{letter}'" + (" or kind == 'w'" if name == "sliding_log" else "")
        branches.append(f"if {letters} then\n{twin(name)}end\n")
    return "".join(branches)


def bodies() -> str:
    """The same without functions: from kind, state, now, limit, cost, from, at to new, fits, then_from, then_at."""
    branches = []
    for name, letters in BODIES.items():
        kinds = " or ".join([f"kind == '{letter}'" for letter in letters])
        branches.append(f"if {kinds} then\n{body(name)}")
    return "else".join(branches) + "end\n"


def body(name: str) -> str:
    """What a twin decides, right where it stands: in a loop that runs once, and is left where the twin returns."""
    before, _, after = twin(name).partition("local function decide(state, now, limit, cost, from, at)\n")
    steps = RETURN.sub(r"new, fits, then_from, then_at = \1\nbreak", after.partition("\nend\n")[0])
    return f"repeat\n{before}{steps}\nuntil true\n"


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
        "decide": bodies(),
        "decide-log": body("sliding_log"),
        "rules": rules(),
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

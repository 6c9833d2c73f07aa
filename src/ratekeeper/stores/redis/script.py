"""Composes the script that the server runs, from the Lua twins of the rules and the driver, ``redis.lua``.

A line ``-- include NAME`` of the driver stands for a file next to it or next to the rules, or for a piece made here.

On the server, making a function takes as long as deciding a limit; so, nearly, do calling one and using the locals of
another.  So the ``decide`` of each twin is inlined where a limit is decided, functions that few calls need are made
then, and a local in capitals is a constant that is inlined, too.  Comments and indentation are not sent.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files

from ratekeeper.algorithms import BUCKETS

# The letter of each rule in the driver.  w is a long log that is read and written as a whole.
KINDS = {
    "gcra": "g",
    "token_bucket": "t",
    "leaky_bucket": "l",
    "fixed_window": "f",
    "calendar_window": "k",
    "first_use_window": "u",
    "sliding_window": "s",
    "sliding_log": "d",
    "concurrency": "c",
}
# The server's clock is read once; a store that was given a clock sends its own time.
SERVER_TIME = "local time = call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n"
GIVEN_TIME = "local now = table.remove(ARGV, 1) + 0\n"

# The letters that each twin decides: the most used first, the longest last.
BODIES = {
    "gcra": "g",
    "token_bucket": "t",
    "leaky_bucket": "l",
    "fixed_window": "f",
    "sliding_window": "s",
    "calendar_window": "k",
    "first_use_window": "u",
    "sliding_log": "dw",
}

DRIVER = ("redis", "ring", "upkeep")  # how the names of its files begin; the other files are next to the rules
INCLUDE = re.compile(r"^( *)-- include (\S+)\n", re.MULTILINE)
COMMENT = re.compile(r"^ *--(?! include ).*\n| --(?! include ).*$", re.MULTILINE)
IMPORTS = "local pack, unpack, values, ahead = struct.pack, struct.unpack, unpack, false\n"  # the driver has them too
DECIDE = re.compile(r"local function decide\(state, from, now, cost, (.+)\)\n")
RETURN = re.compile(r"^ *return (.+, (?:true|false), .+)$", re.MULTILINE)
NUMBERS = ("a", "b", "c", "d", "e")  # what the driver calls the numbers of a limit
CONSTANT = re.compile(r"^ *local ([A-Z][A-Z_]*) = (.+)\n", re.MULTILINE)
CAPITALS = re.compile(r"\b[A-Z][A-Z_]*\b")


@cache
def twin(name: str) -> str:
    """The text of a twin, without the imports that the driver has."""
    return text_of(f"{name}.lua", {}).replace(IMPORTS, "")


def rules() -> str:
    """The body of ``rule(kind)``: a branch for each letter, which returns decide and refund of its twin."""
    branches = []
    for name, letter in KINDS.items():
        letters = letter + ("w" if name == "sliding_log" else "")
        branches.append(f"if {is_any_of(letters)} then\n{twin(name)}end\n")
    return "".join(branches)


def is_any_of(letters: str) -> str:
    """The condition that a limit is of one of these kinds; the driver has a letter's code, not the letter."""
    return " or ".join([f"kind == {ord(letter)}" for letter in letters])


def bodies(*, first: bool = False) -> str:
    """The same without functions: from kind, state, from, now, cost and the limit to new, fits, then_from.

    The ``first`` state of a record has its place at the start, and that of a bucket is packed together with the instant
    that stands there: to pack and join strings costs as much as all the rest of a decision.
    """
    branches = []
    for name, letters in BODIES.items():
        if name == "sliding_log" and not first:  # a log has a record of its own
            continue
        steps = body(name)
        if first and name in BUCKETS:
            steps = "local from = 9\n" + re.sub(r"\bpack\('>I8I4', ", "pack('>I8I8I4', now, ", steps)
        elif first:
            steps = "local from = 1\n" + steps
        branches.append(f"if {is_any_of(letters)} then\n{steps}")
    return "else".join(branches) + "end\n"


def body(name: str) -> str:
    """The decision of a twin, inlined: a loop that runs once, with a break where the twin returns."""
    before, names, after = DECIDE.split(twin(name))
    own = f"local {names} = {', '.join(NUMBERS[: names.count(',') + 1])}\n"
    steps = RETURN.sub(r"new, fits, then_from = \1\nbreak", after.partition("\nend\n")[0])
    return f"repeat\n{before}{own}{steps}\nuntil true\n"


def text_of(name: str, pieces: dict[str, str]) -> str:
    """A piece or a file, with its includes replaced."""
    if name not in pieces:
        place = "ratekeeper.stores.redis" if name.startswith(DRIVER) else "ratekeeper.algorithms"
        text = COMMENT.sub("", files(place).joinpath(name).read_text("utf-8"))
        text = INCLUDE.sub(lambda found: indented(text_of(found[2], pieces), found[1]), text)
        pieces[name] = with_constants(text)
    return pieces[name]


def indented(text: str, margin: str) -> str:
    return margin + text.removesuffix("\n").replace("\n", "\n" + margin) + "\n"


def with_constants(text: str) -> str:
    """A text with its constants inlined, also in each other."""
    values: dict[str, str] = {}
    for name, value in CONSTANT.findall(text):
        values[name] = CAPITALS.sub(lambda found: values.get(found[0], found[0]), f"({value})")
    return CAPITALS.sub(lambda found: values.get(found[0], found[0]), CONSTANT.sub("", text)) if values else text


@cache
def compose(*, given_time: bool = False) -> Script:
    pieces = {
        "now": GIVEN_TIME if given_time else SERVER_TIME,
        "decide": bodies(),
        "decide-first": bodies(first=True),
        "decide-log": body("sliding_log"),
        "rules": rules(),
        "leases": twin("concurrency"),
    }
    nothing = (b"refund", b"0", b"")
    lines = [line.strip() for line in text_of("redis.lua", pieces).splitlines()]
    return Script("\n".join([line for line in lines if line]), (b"0", *nothing) if given_time else nothing)


class Script:
    """The text of the script, its digest for EVALSHA, and arguments with which it does nothing."""

    __slots__ = ("nothing", "sha", "text")

    def __init__(self, text: str, nothing: tuple[bytes, ...]) -> None:
        self.text = text.encode()
        self.nothing = nothing
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()

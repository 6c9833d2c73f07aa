"""Imports point only downwards, and the core stays cheap to import."""

import ast
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "ratekeeper"

ARCHITECTURE = SOURCE.parent.parent / "ARCHITECTURE.md"


def floors():
    """The list in ARCHITECTURE.md: for each room its place, and for each module its floor inside the room."""
    block = ARCHITECTURE.read_text("utf-8").split("```floors\n")[1].split("```")[0]
    places, inside = {}, {}
    for place, line in enumerate(block.splitlines()):
        room, _, modules = line.partition(" ")
        places[room] = place
        for floor, names in enumerate(modules.split("|")):
            for name in names.split():
                inside[module_name(room, name)] = floor
        inside.setdefault(room, 0)
    return places, inside


def module_name(room, name):
    return room if name == "__init__" else f"{room}.{name}"


def module_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"


def imports(path, modules):
    """The modules that a file imports at run time, inside functions too; not what only a type checker reads."""
    tree = ast.parse(path.read_text("utf-8"))
    for_checkers = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in for_checkers:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "ratekeeper":
            module = node.module.partition(".")[2]
            for alias in node.names:
                inner = f"{module}.{alias.name}".removeprefix(".")
                yield inner if inner in modules else module or "__init__"
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.partition(".")[2] or "__init__"
                for alias in node.names
                if alias.name.partition(".")[0] == "ratekeeper"
            )


def test_imports_point_downwards_between_rooms_and_inside_them():
    places, inside = floors()
    paths = {module_of(path): path for path in SOURCE.rglob("*.py")}
    assert set(paths) == set(inside), "ARCHITECTURE.md: expected every module in the list of floors, once"
    wrong, seen = [], 0
    for module, path in paths.items():
        room = module.partition(".")[0]
        for other in imports(path, paths):
            if other not in paths or other == module:  # what was compiled, and a package that names itself
                continue
            seen += 1
            other_room = other.partition(".")[0]
            if other_room != room:
                is_below = places[other_room] < places[room]
            else:
                is_below = inside[other] < inside[module]
            if not is_below:
                wrong.append(f"{module} imports {other}")
    assert seen > 500
    assert not wrong


def test_the_picture_has_every_room_in_the_order_of_the_list():
    places, _ = floors()
    picture = ARCHITECTURE.read_text("utf-8").split("```picture\n")[1].split("```")[0]
    drawn = {}
    for height, line in enumerate(reversed(picture.splitlines())):
        for word in re.findall(r"[a-z_]+", line):
            if word in places:
                drawn.setdefault(word, height)
    entries = {"__init__", "__main__"}  # they only open the front door and the command line
    assert set(drawn) == set(places) - entries
    wrong = [
        (lower, upper)
        for lower, upper in product(drawn, repeat=2)
        if drawn[lower] < drawn[upper] and places[lower] > places[upper]
    ]
    assert not wrong


SLOW = ["asyncio", "typing", "dataclasses", "re", "enum", "inspect", "functools", "collections", "threading", "random"]


def test_importing_the_core_imports_nothing_slow():
    script = "import sys; before = set(sys.modules); import ratekeeper; print(*sorted(set(sys.modules) - before))"
    command = [sys.executable, "-S", "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); {script}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "ratekeeper.limiter" in loaded
    assert not [name for name in loaded if name in SLOW]


def test_the_guards_are_still_on():
    settings = (SOURCE.parent.parent / "pyproject.toml").read_text()
    assert "\nstrict = true\n" in settings
    assert 'filterwarnings = ["error"' in settings.replace("\n", "").replace("    ", "")

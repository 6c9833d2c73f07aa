"""Imports point only downwards, and the core stays cheap to import."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "ratekeeper"

# Each floor may import from those above it in this list (that is: lower in the house), and from its own.
FLOORS = [
    {"errors"},
    {"algorithms"},
    {"units", "keys", "clock", "native"},
    {"model"},
    {"stores"},
    {"flow"},
    {"drive", "heartbeat"},
    {"reservation", "decorator"},
    {"limiter"},
    {"request"},
    {"address", "tokens"},
    {"identity"},
    {"match", "schema"},
    {"rules", "headers"},
    {"shape"},
    {"config"},
    {"plan"},
    {"verdict"},
    {"events", "explain", "watch", "program"},
    {"policy"},
    {"adapters", "sinks", "advice"},
    {"service"},
    {"testing", "__init__"},
    {"demo_http"},
    {"outbound"},
    {"demo", "lab"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


def imports(path):
    """The rooms that a file imports at run time; what only a type checker reads does not count."""
    tree = ast.parse(path.read_text())
    checked = [
        node for block in ast.walk(tree) if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    ]  # fmt: skip
    for node in ast.walk(tree):
        if node in checked:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ratekeeper"):
            rest = node.module.split(".")[1:]
            yield from [rest[0]] if rest else [alias.name for alias in node.names if alias.name in LEVEL]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("ratekeeper."))


def test_imports_point_downwards():
    seen = 0
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).with_suffix("").parts[0]
        assert room in LEVEL, f"{path}: a new room needs a floor in this test"
        for other in imports(path):
            seen += 1
            assert LEVEL[other] <= LEVEL[room], f"{path} imports {other}, which is above it"
            if LEVEL[other] == LEVEL[room]:
                assert other == room, f"{path} imports {other}, which is beside it"
    assert seen > 20


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

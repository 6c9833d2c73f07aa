"""Run the named benchmarks, or all: ``python -m bench [name ...]``."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from pathlib import Path

import bench
from bench import harness

SUPPORT = {"__main__", "charts", "harness", "peers", "relay"}
JSON = "--json"


def main() -> int:
    names = sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if module.name not in SUPPORT)
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]  # a benchmark may have options of its own
    if {"-h", "--help"} & set(sys.argv):
        print(f"{__doc__}\n")
        for name in names:
            print(f"  {name:15} {first_line(name)}")
        print(f"\n  {JSON:15} keep what they record in bench/results, from where `python -m bench.charts` draws it")
        return 0
    for name in wanted:
        if name not in names:
            print(f"bench: expected one of {', '.join(names)}, got {name!r}. See --help.", file=sys.stderr)
            return 2
    for name in wanted or names:
        importlib.import_module(f"bench.{name}").main()
        written = harness.write(name) if JSON in sys.argv else None
        harness.recorded.clear()
        if written is not None:
            print(f"\n{written}")
    return 0


def first_line(name: str) -> str:
    """What a benchmark measures: the first line of its docstring, read without its imports."""
    text = Path(bench.__path__[0], f"{name}.py").read_text("utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())

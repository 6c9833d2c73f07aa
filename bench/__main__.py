"""Run the named benchmarks, or all."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench

SUPPORT = {"__main__", "harness", "peers", "relay"}


def main() -> int:
    known = sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if module.name not in SUPPORT)
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")] or known
    for name in wanted:
        if name not in known:
            print(f"bench: expected one of {', '.join(known)}, got {name!r}.", file=sys.stderr)
            return 2
    for name in wanted:
        importlib.import_module(f"bench.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())

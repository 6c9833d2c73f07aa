"""``python -m conformance``: run the suite, list targets and laws, install the peers, write the page."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from conformance.judge import FAILED, NOT_PROMISED, PASSED, judge
from conformance.laws import LAWS
from conformance.results import RESULTS, conditions, merge
from conformance.targets import all_targets, find

SIGNS = {PASSED: "ok  ", FAILED: "FAIL", NOT_PROMISED: "-   "}


def show(result: dict[str, Any]) -> None:
    """One target, one line for each law."""
    print(f"\n{result['target']}: {result.get('name', '')} {result.get('version', '')}".rstrip())
    if "missing" in result:
        print(f"  skipped: {result['missing']}")
        return
    for name, cell in result["laws"].items():
        if cell["status"] != NOT_PROMISED:
            print(f"  {SIGNS.get(cell['status'], '?   ')} {name}: {cell['says']}", flush=True)
            for line in cell.get("history", ()):
                print(f"         {line}")
    levels = ", ".join(f"{level} {state}" for level, state in result["levels"].items() if state != NOT_PROMISED)
    print(f"  levels: {levels}", flush=True)


def run(options: argparse.Namespace) -> int:
    known = all_targets()
    groups = {"all": list(known), "ours": [n for n, t in known.items() if t.family == "ours"],
              "peers": [n for n, t in known.items() if t.family == "peer"]}  # fmt: skip
    for law in options.law or ():
        if law not in LAWS:
            raise ValueError(f"law: expected one of {', '.join(LAWS)}, got {law!r}.")
    results = []
    for text in [name for word in options.target for name in groups.get(word, [word])]:
        results.append(judge(find(text), options.law, is_quick=options.quick))
        show(results[-1])
        if options.out and not options.law:
            merge(Path(options.out), results[-1:], conditions())
    failed = [each["target"] for each in results if FAILED in [cell["status"] for cell in each["laws"].values()]]
    print(
        f"\n{len(results)} targets, {sum('missing' in each for each in results)} skipped, {len(failed)} with a failure"
    )
    return 1 if failed else 0


def list_all(options: argparse.Namespace) -> int:
    print("Laws\n")
    for entry in LAWS.values():
        print(f"  {entry.name:18} {entry.level:12} {entry.sentence}")
    print("\nTargets\n")
    for target in all_targets().values():
        print(f"  {target.name:28} {target.language:7} {target.missing() or ''}".rstrip())
    return 0


def install(options: argparse.Namespace) -> int:
    from conformance.install import install_peers

    return install_peers(options.language)


def page(options: argparse.Namespace) -> int:
    from conformance.page import write_page

    return write_page(json.loads(Path(options.results).read_text("utf-8")), is_check=options.check)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m conformance", description="A conformance suite for rate limiters.")
    commands = made.add_subparsers(required=True)
    runs = commands.add_parser("run", help="judge targets by the laws")
    runs.add_argument("--target", action="append", required=True, metavar="NAME",
                      help="a name from `list`, all, ours, peers, or python:module:name, line:COMMAND, "
                           "http|resp|envoy:PORT?PROMISES.json, broken:BUG; several times for several")  # fmt: skip
    runs.add_argument("--law", action="append", metavar="LAW", help="only this law; several times for several")
    runs.add_argument("--quick", action="store_true", help="fewer keys and rounds")
    runs.add_argument("--out", metavar="FILE", help="add the results to this JSON file")
    runs.set_defaults(act=run)
    commands.add_parser("list", help="list the laws and the targets").set_defaults(act=list_all)
    installs = commands.add_parser("install", help="install the peers into build/conformance")
    installs.add_argument("language", nargs="*", help="python, node, go, rust, java; none: all")
    installs.set_defaults(act=install)
    pages = commands.add_parser("page", help="write docs/conformance.md and its chart from a result file")
    pages.add_argument("--results", default=str(RESULTS), metavar="FILE")
    pages.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    pages.set_defaults(act=page)
    return made


def main() -> int:
    options = parser().parse_args()
    try:
        return int(options.act(options))
    except (ValueError, FileNotFoundError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

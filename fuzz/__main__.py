"""Fuzz every target for a while: ``python -m fuzz [--seconds N] [TARGET ...]``.

The guided fuzzers are atheris for Python and libFuzzer (clang) for C.  Where one of them is missing, a line says so,
and the same targets run with random changes of their inputs.  New inputs are kept in build/fuzz, so that the next run
goes on from there; an input that fails is kept there too, and printed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from fuzz.mutator import run

HERE = Path(__file__).parent
WORK = HERE.parent / "build" / "fuzz"
PYTHON = sorted(path.stem for path in (HERE / "targets").glob("[a-z]*.py"))
NATIVE = sorted(path.stem for path in (HERE / "native").glob("*.c") if path.stem != "main")
LONGEST = 4096  # bytes of an input
SLOW = 20  # seconds for one input: it would take the service as long
MEGABYTES = 2048
FLAGS = ["-g", "-O1", "-std=gnu11", "-DFUZZED", "-fno-sanitize-recover=undefined", "-pthread"]


class Outcome(NamedTuple):
    """What one target came to."""

    inputs: int
    failure: str  # "" if there is none


def seeds(target: str) -> list[Path]:
    return sorted((HERE / "corpus" / target).glob("*"))


def guided(command: list[str], target: str, seconds: float, seed: int) -> Outcome:
    """Run a libFuzzer, which atheris is one of, too."""
    folder = WORK / target
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-max_len={LONGEST}", f"-timeout={SLOW}",
             f"-rss_limit_mb={MEGABYTES}", "-print_final_stats=1", f"-artifact_prefix={WORK}/{target}-"]  # fmt: skip
    done = subprocess.run([*command, *words, str(folder), str(HERE / "corpus" / target)], capture_output=True)
    said = done.stderr.decode(errors="replace")
    tried = re.findall(r"stat::number_of_executed_units:\s*(\d+)", said) or re.findall(r"^#(\d+)\s", said, re.M)
    return Outcome(int(tried[-1]) if tried else 0, what_failed(said) if done.returncode else "")


def what_failed(said: str) -> str:
    """Of all that libFuzzer says: the traceback or the finding of a sanitizer, and where the input is."""
    noise = re.compile(r"^(#|INFO|WARNING|stat::|0x|Base64|MS:|artifact)|^\s*$")
    lines = [line for line in said.splitlines() if not noise.match(line)]
    inputs = re.findall(r"Test unit written to (\S+)", said)
    return "\n".join([*lines[-40:], *inputs])[-4000:]


def fuzz_python(target: str, seconds: float, seed: int, has_atheris: bool) -> Outcome:
    command = [sys.executable, "-m", "fuzz.one", target]
    if has_atheris:
        return guided(command, target, seconds, seed)
    try:
        check = importlib.import_module(f"fuzz.targets.{target}").check
        return Outcome(run(check, [path.read_bytes() for path in seeds(target)], seconds, seed, LONGEST), "")
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        return Outcome(0, f"{type(error).__name__}: {error}\n" + "\n".join(notes))


def fuzz_native(target: str, seconds: float, seed: int, clang: str | None) -> Outcome:
    program, source = WORK / f"{target}.program", HERE / "native" / f"{target}.c"
    compiler = clang or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return Outcome(0, "")
    more = ["-fsanitize=fuzzer,address,undefined"] if clang else ["-fsanitize=address,undefined"]
    sources = [str(source)] if clang else [str(source), str(HERE / "native" / "main.c")]
    subprocess.run([compiler, *FLAGS, *more, *sources, "-o", str(program)], check=True)
    if clang:
        return guided([str(program)], target, seconds, seed)
    command = [str(program), str(int(seconds)), str(seed), *map(str, seeds(target))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=WORK)
    return Outcome(int(done.stdout or 0), done.stderr[-4000:] if done.returncode else "")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz the targets, two at a time.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join([*PYTHON, *NATIVE])}")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (60)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="targets at a time (2)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 2**31)
    options = parser.parse_args(words)
    targets = options.targets or [*PYTHON, *NATIVE]
    unknown = set(targets) - {*PYTHON, *NATIVE}
    if unknown:
        parser.error(f"expected one of {', '.join([*PYTHON, *NATIVE])}, got {', '.join(sorted(unknown))}")
    has_atheris = importlib.util.find_spec("atheris") is not None
    clang = shutil.which("clang")
    if not has_atheris:
        print("no atheris here: the Python targets get random changes, without guidance by coverage")
    if clang is None:
        print("no clang here: the C targets get random changes, without guidance by coverage")
    WORK.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, {options.seconds:g} s for each of {len(targets)} targets")
    failed = []

    def fuzz(target: str) -> tuple[str, Outcome, float]:
        began = time.monotonic()
        if target in PYTHON:
            outcome = fuzz_python(target, options.seconds, options.seed, has_atheris)
        else:
            outcome = fuzz_native(target, options.seconds, options.seed, clang)
        return target, outcome, time.monotonic() - began

    # The guided ones are processes of their own; the others share this one, where two would only take turns.
    with ThreadPoolExecutor(options.jobs if has_atheris else 1) as pool:
        for target, outcome, took in pool.map(fuzz, targets):
            print(f"{target:16} {outcome.inputs:>12,} inputs in {took:.0f} s", flush=True)
            if outcome.failure:
                failed.append(target)
                print(outcome.failure)
    if failed:
        print(f"\nfailed: {', '.join(failed)}. The inputs are in {WORK}, or printed above: see CONTRIBUTING.md.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

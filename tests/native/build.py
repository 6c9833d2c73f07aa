"""Compiles the C programs of this folder, with what finds mistakes in them if asked to."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = ROOT / "build" / "programs"  # compiled once for each text, compiler and set of flags
STRICT = ["-Wall", "-Wextra", "-Wno-unused-function", "-Wno-missing-field-initializers", "-Werror"]


def compiler():
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler here")
    return found


def digest(command, name):
    """Tell apart whatever a program is made of: the command, its own text and all headers of the core."""
    texts = [HERE / f"{name}.c", *sorted((ROOT / "src" / "ratekeeper").glob("*/*.h"))]
    made_of = [*command, *[text.read_text("utf-8") for text in texts]]
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]


def compiled(name, *flags):
    """The program ``name.c``, ready to run."""
    command = [compiler(), "-std=gnu11", "-g", *STRICT, *flags, str(HERE / f"{name}.c"), "-pthread", "-o"]
    target = PROGRAMS / f"{name}-{digest(command, name)}"
    if not target.exists():
        PROGRAMS.mkdir(parents=True, exist_ok=True)
        begun = target.with_suffix(f".{os.getpid()}")  # whoever is quicker: both make the same
        done = subprocess.run([*command, str(begun)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        begun.rename(target)
    return target


def run(program, *arguments, timeout=100):
    return subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, timeout=timeout)

"""Compiles the C programs of this folder, with what finds mistakes in them if asked to."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STRICT = ["-Wall", "-Wextra", "-Wno-unused-function", "-Wno-missing-field-initializers", "-Werror"]


def compiler():
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler here")
    return found


def compiled(name, folder, *flags):
    """The program ``name.c``, ready to run."""
    target = folder / name
    command = [compiler(), "-std=gnu11", "-g", *STRICT, *flags, str(HERE / f"{name}.c"), "-o", str(target), "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def run(program, *arguments, timeout=100):
    return subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, timeout=timeout)

"""Every input of the fuzzers' corpus passes: those to begin with, and those that once failed."""

import importlib
import random
import shutil
import subprocess

import pytest

from fuzz.__main__ import FLAGS, HERE, NATIVE, PYTHON, seeds
from fuzz.choices import Choices, segments
from fuzz.mutator import mutated, run
from ratekeeper.native import core

INPUTS = [(target, path) for target in PYTHON for path in seeds(target)]


@pytest.mark.parametrize(("target", "path"), INPUTS, ids=[f"{target}-{path.name}" for target, path in INPUTS])
def test_an_input_of_the_corpus_passes(target, path):
    if target == "shared_memory" and core is None:
        pytest.skip("shared memory needs the native core")
    importlib.import_module(f"fuzz.targets.{target}").check(path.read_bytes())


@pytest.mark.full  # it compiles
@pytest.mark.parametrize("target", NATIVE)
def test_the_corpus_of_a_c_target_passes(target, tmp_path):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    sources = [HERE / "native" / f"{target}.c", HERE / "native" / "main.c"]
    subprocess.run([compiler, *FLAGS, *sources, "-o", tmp_path / "program"], check=True)
    command = [tmp_path / "program", "0", "1", *seeds(target)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > len(seeds(target))


def test_every_target_has_a_corpus():
    assert all(seeds(target) for target in [*PYTHON, *NATIVE])


def test_the_mutator_names_the_input_that_failed():
    tried = []

    def fails_at_last(data):
        tried.append(data)
        assert len(tried) < 50

    with pytest.raises(AssertionError) as caught:
        run(fails_at_last, [b"one", b"two"], 60, 1, 8)
    assert tried[:2] == [b"one", b"two"]
    assert len(set(tried)) > 20
    assert max(map(len, tried)) <= 8
    assert caught.value.__notes__ == [f"input {tried[-1].hex()}"]
    assert mutated(random.Random(3), [b"seed"], 100) == mutated(random.Random(3), [b"seed"], 100)


def test_choices_and_segments_use_all_bytes():
    choices = Choices(b"\x05\x02abcd")
    assert (choices.of("abc"), choices.piece(), choices.rest(), bool(choices), choices.number(4)) == (
        "c", b"ab", b"cd", False, 0,
    )  # fmt: skip
    assert list(segments(b"abcdefg", b"\x01\x03")) == [b"a", b"bcd", b"e", b"fg"]
    assert list(segments(b"abc", b"")) == [b"abc"]

"""A process is killed between any two instructions of a decision: ``make real`` tries far more of them."""

import platform

import pytest

from tests import tier
from tests.native.build import compiled, run


@pytest.mark.full  # it steps through a program
@pytest.mark.skipif(platform.machine() != "x86_64" or platform.system() != "Linux", reason="steps x86-64 on Linux")
def test_a_process_killed_at_some_instructions_harms_nobody():
    program = compiled("killed", "-O2", "-Wl,-z,now")
    done = run(program, "all", tier.steps(307, 3023), 5)
    if done.returncode == 77:
        pytest.skip("stepping is not allowed here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 15

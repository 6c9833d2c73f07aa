"""For every store: processes that share one, and names of segments that nobody else has."""

import uuid

import pytest

from tests.stores.processes import Interpreter


@pytest.fixture(scope="session")
def two_processes():
    interpreters = Interpreter(), Interpreter()
    yield interpreters
    for interpreter in interpreters:
        interpreter.close()


@pytest.fixture
def name():
    """The name of a segment of shared memory, which is removed after the test."""
    from ratekeeper.stores.shared import remove, segments

    found = f"test-{uuid.uuid4().hex}"
    yield found
    if found in [segment.name for segment in segments()]:
        remove(found, force=True)

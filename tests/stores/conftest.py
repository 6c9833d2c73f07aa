import pytest

from tests.stores.processes import Interpreter


@pytest.fixture(scope="session")
def two_processes():
    interpreters = Interpreter(), Interpreter()
    yield interpreters
    for interpreter in interpreters:
        interpreter.close()

"""Tests mirror the source: ``rules/match.py`` is tested by ``rules/test_match.py``."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "ratekeeper"

# Modules without a test of their stem, and what tests them.  New modules come with a test: this list only shrinks.
WITHOUT_A_TEST = {
    "adapters/django/apps.py": "tests/adapters/test_django.py, through the checks of Django",
    "adapters/django/translate.py": "tests/adapters/test_django.py, through Django itself",
    "algorithms/__init__.py": "tests/laws: a registry",
    "flow/effects.py": "tests/flow/test_acquire.py: three values without behaviour",
    "flow/heartbeat.py": "tests/real/test_heartbeat.py: it beats in real time",
    "flow/run.py": "tests/test_limiter.py: every call that waits runs through it",
    "lab/__init__.py": "names only",
    "lab/decide_log.py": "tests/lab/test_replay.py, beside the policy itself",
    "outbound/__init__.py": "names only",
    "rules/counter.py": "tests/rules/test_decide.py and tests/rules/test_policy.py",
    "service/http/dashboard.py": "tests/real/test_dashboard.py, in a browser",
    "service/named_limits.py": "tests/service/http/test_api.py and tests/service/test_resp.py",
    "service/start.py": "tests/commands/test_serve.py",
    "service/supervisor.py": "tests/real/test_workers.py: it starts and ends processes",
    "service/worker.py": "tests/service/running.py: every test of the service runs one",
    "stores/protocol.py": "tests/typing/api.py: types only",
    "stores/redis/aio_connection.py": "tests/stores/redis/test_aio_store.py and tests/real/test_faults.py",
    "stores/redis/any_store.py": "tests/stores/redis/test_store.py, through both stores",
    "stores/redis/plans.py": "tests/stores/redis/test_topology.py, across slots",
    "stores/redis/refusal.py": "tests/twins/test_refusals.py, beside its twin in C",
    "stores/redis/request.py": "tests/stores/redis/test_script.py, on real servers",
    "stores/redis/resp.py": "tests/native/test_line.py: one function",
    "stores/redis/steps.py": "tests/stores/redis/test_topology.py: values without behaviour",
    "stores/redis/table.py": "tests/stores/redis/test_refusal_cache.py and tests/stores/redis/test_prepared.py",
    "testing/__init__.py": "tests/stores/test_memory.py: the fixtures of pytest",
    "version.py": "tests/commands/test_app.py: one number",
}


def modules():
    """Each module by its path; packages that only have a docstring hold nothing to test."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name == "__init__.py" and len(ast.parse(path.read_text("utf-8")).body) <= 1:
            continue
        yield path.relative_to(SOURCE)


def places_for(module):
    """Where the test of a module may lie: the test of a package is beside its folder or in it."""
    name = {"__init__": "init", "__main__": "main"}.get(module.stem, module.stem)
    places = [TESTS / module.parent / f"test_{name}.py"]
    if module.stem == "__init__" and module.parent.name:
        places.append(TESTS / module.parent.parent / f"test_{module.parent.name}.py")
    return places


def test_every_module_has_a_test_of_its_stem():
    without = {module.as_posix() for module in modules() if not any(place.exists() for place in places_for(module))}
    assert without - set(WITHOUT_A_TEST) == set(), "write a test of this stem for each of these"
    assert set(WITHOUT_A_TEST) - without == set(), "these have a test, or are gone: take them off the list"


def test_what_stands_in_for_a_test_exists():
    for module, reason in WITHOUT_A_TEST.items():
        for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason):
            assert (TESTS.parent / path).exists(), f"{module}: {path}"

"""From pip install to the first 429: every application of the page runs, and the page counts what it counts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "first_429"
PAGE = (ROOT / "docs" / "howto" / "first-429.md").read_text("utf-8")
PAIRS = {
    "FastAPI": ("fastapi_ratekeeper", "fastapi_slowapi"),
    "Flask": ("flask_ratekeeper", "flask_limiter"),
    "Django": ("django_ratekeeper", "django_ratelimit_429"),
    "REST framework": ("drf_ratekeeper", "drf_own"),
}
# Of one line of the table: steps, lines of the application, lines for the limit, and whether it tells when to retry.
ROW = re.compile(r"^\|[^|]*\| [^|]+ \| (\d+) \| (\d+) \| (\d+) \| (yes|no) \|$", re.M)
ABOUT_LIMITS = re.compile(r"ratekeeper|slowapi|flask_limiter|rate_?limit|limiter|throttl|too_many|429|RateLimit", re.I)
CALLS = {
    "fastapi": "from fastapi.testclient import TestClient; get = TestClient(module.app).get",
    "flask": "get = module.app.test_client().get",
    "django": "import django; django.setup(); from django.test import Client; get = Client().get",
    "drf": "import django; django.setup(); from django.test import Client; get = Client().get",
}


def rows():
    table = [match.groups() for match in ROW.finditer(PAGE)]
    assert len(table) == 2 * len(PAIRS)
    return [(name, *table[number]) for number, name in enumerate(name for pair in PAIRS.values() for name in pair)]


@pytest.mark.full
@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_third_call_is_refused(row):
    name, *_, retry = row
    program = f"""
import importlib, warnings
warnings.simplefilter("ignore")
module = importlib.import_module("examples.first_429.{name}")
{CALLS[name.partition("_")[0]]}
answers = [get("/") for _ in range(3)]
print([answer.status_code for answer in answers], "retry-after" in {{key.lower() for key in answers[2].headers.keys()}})
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip().splitlines()[-1:] == [f"[200, 200, 429] {retry == 'yes'}"], done.stderr


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_page_shows_the_file_and_counts_its_lines(row):
    name, _, lines, own, _ = row
    assert f'--8<-- "examples/first_429/{name}.py"' in PAGE
    code = [line for line in (FOLDER / f"{name}.py").read_text("utf-8").splitlines() if line.strip()]
    assert (len(code), sum(1 for line in code if ABOUT_LIMITS.search(line))) == (int(lines), int(own))


def test_no_framework_takes_more_lines_than_with_the_library_that_is_best_known():
    counts = {name: (int(lines), int(own)) for name, _, lines, own, _ in rows()}
    for ours, theirs in PAIRS.values():
        assert counts[ours] <= counts[theirs]

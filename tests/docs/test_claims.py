"""The page of published claims agrees with the algorithms."""

import re
from pathlib import Path

import pytest

from bench import claims

PAGE = Path(__file__).parents[2] / "docs" / "explain" / "claims.md"
PART = re.compile(r"<!-- written: (\w+) -->\n\n(.*?)\n\n<!-- end -->", re.S)


@pytest.mark.parametrize("name", ["boundary", pytest.param("latency", marks=pytest.mark.full)])
def test_a_claim_comes_out_as_written(name):
    """Check the claims that take a second; memory differs between machines, and laws test the others."""
    written = dict(PART.findall(PAGE.read_text("utf-8")))
    assert claims.CLAIMS[name][0]() == written[name]


def test_every_claim_has_its_part_and_picture():
    text = PAGE.read_text("utf-8")
    assert [name for name, _ in PART.findall(text)] == list(claims.CLAIMS)
    for name in claims.CLAIMS:
        assert f"../pictures/claims-{name}.svg" in text
        assert f"python -m bench.claims {name}" in text

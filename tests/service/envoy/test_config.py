"""Files of envoyproxy/ratelimit: what they may say, and every message in full."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.errors import InvalidRules
from ratekeeper.service.envoy.config import Descriptors, load

CONFIG = Path(__file__).parent / "ratelimit.yaml"

MISTAKES = [
    ({"descriptors": []}, "x.yaml: domain: expected text. It is the domain that the Envoy filter sends."),
    (
        {"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "minut", "requests_per_unit": 1}}]},
        "x.yaml: descriptors[0].rate_limit.unit: expected one of second, minute, hour, day, week, month, year, "
        "got 'minut'. Did you mean 'minute'?",
    ),
    (
        {"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "day", "requests_per_unit": -1}}]},
        "x.yaml: descriptors[0].rate_limit.requests_per_unit: expected a whole number from 0 to 4,294,967,295, got -1.",
    ),
    (
        {"domain": "d", "descriptors": [{"key": "a"}, {"key": "a"}]},
        "x.yaml: descriptors[1]: expected a key of its own, got 'a'. It stands here twice.",
    ),
]


@pytest.mark.parametrize(("found", "message"), MISTAKES)
def test_a_mistake_in_the_file_is_an_error(found, message):
    with pytest.raises(InvalidRules) as error:
        Descriptors().add(found, "x.yaml")
    assert str(error.value) == message


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=1, max_size=3))
def test_different_descriptors_have_different_keys(entries):
    """The service that we replace joins parts by '_': two descriptors could share a counter."""
    from ratekeeper.keys import encode

    tree = load(CONFIG)
    one, other = tree.find("edge", [("tenant", "a_b")]), tree.find("edge", [("tenant", "a")])
    assert one is not None
    assert other is not None
    assert encode(one[1]) != encode(other[1])
    tree.find("edge", entries)


def test_a_folder_of_files_is_taken_together(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\ndescriptors: [{{key: a}}]\n")
    assert set(load(tmp_path).domains) == {"one", "two"}

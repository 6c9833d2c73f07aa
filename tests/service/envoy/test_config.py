"""Files of envoyproxy/ratelimit: what they may say, and every message in full."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Limiter
from ratekeeper.errors import InvalidRules
from ratekeeper.service.envoy.config import DescriptorNode, Descriptors, ValuePattern, load
from ratekeeper.testing import FakeClock

CONFIG = Path(__file__).parent / "ratelimit.yaml"

DAY = 86_400


def rated(**rate):
    return {"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"requests_per_unit": 1, **rate}}]}


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
        rated(unit="month", window="calender"),
        "x.yaml: descriptors[0].rate_limit.window: expected 'calendar' or 'first-use', got 'calender'. "
        "Did you mean 'calendar'?",
    ),
    (
        rated(unit="month", timezone="Europe/Berlin"),
        "x.yaml: descriptors[0].rate_limit.timezone: expected window: calendar beside it, got 'Europe/Berlin'.",
    ),
    (
        rated(unit="month", window="calendar", algorithm="gcra"),
        "x.yaml: descriptors[0].rate_limit.window: expected fixed_window or no algorithm beside it, got 'gcra'.",
    ),
    (
        rated(unit="hour", window="calendar"),
        "x.yaml: descriptors[0].rate_limit: expected a limit that is possible. limit 1 per 'hour': expected "
        "'day', 'week', 'month' or 'year' as the period of a calendar window, got another. Shorter periods start at "
        "full hours, minutes and seconds with algorithm='fixed_window'.",
    ),
    (
        {"domain": "d", "descriptors": [{"key": "a"}, {"key": "a"}]},
        "x.yaml: descriptors[1]: expected a key of its own, got 'a'. It stands here twice.",
    ),
    (
        {"domain": "d", "descriptor": []},
        "x.yaml: expected one of domain, descriptors, got 'descriptor'. Did you mean 'descriptors'?",
    ),
    (
        {"domain": "d", "descriptors": [{"key": "a", "shadow_mode": "false"}]},
        "x.yaml: descriptors[0].shadow_mode: expected true or false, got 'false'.",
    ),
    (
        {"domain": "d", "descriptors": [{"key": "a", "value": "b", "share_threshold": True}]},
        "x.yaml: descriptors[0].share_threshold: expected a value with a * beside it, got 'b'. "
        "Other values have one counter each already.",
    ),
    (
        {"domain": "d", "descriptors": [{"key": "a", "value": ["b"]}]},
        "x.yaml: descriptors[0].value: expected text, got ['b'].",
    ),
    (
        rated(unit="day", replaces=[{"name": ""}]),
        "x.yaml: descriptors[0].rate_limit.replaces[0].name: expected the name of another limit, got ''.",
    ),
    (
        rated(unit="day", name="n", replaces=[{"name": "n"}]),
        "x.yaml: descriptors[0].rate_limit.replaces[0].name: expected the name of another limit, got 'n'. "
        "It is the name of this one.",
    ),
    (
        rated(unit="day", replaces=["n"]),
        "x.yaml: descriptors[0].rate_limit.replaces[0]: expected a table with a name, got 'n'.",
    ),
    (
        {"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unlimited": True, "unit": "day"}}]},
        "x.yaml: descriptors[0].rate_limit.unit: expected no other setting beside unlimited, got 'day'.",
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
    assert encode(one.key) != encode(other.key)
    tree.find("edge", entries)


def tree_of(text, folder):
    (folder / "x.yaml").write_text(text)
    return load(folder / "x.yaml")


def counts(tree, *entries):
    """The count of the limit that entries lead to."""
    match = tree.find("d", [tuple(entry.split("=")) for entry in entries])
    return None if match is None else match.rate.count


def rows(*limits):
    lines = ["domain: d", "descriptors:"]
    for number, (key, value) in enumerate(limits, 1):
        lines.append(f"  - {{key: {key}, {value}rate_limit: {{unit: day, requests_per_unit: {number}}}}}")
    return "\n".join(lines)


def test_the_first_pattern_of_the_file_applies_after_the_exact_value(tmp_path):
    values = ['value: "x*", ', "value: x/1, ", 'value: "x/*", ', 'value: "*/end", ', 'value: "a*b*c", ', ""]
    tree = tree_of(rows(*[("k", value) for value in values]), tmp_path)
    found = {
        value: counts(tree, f"k={value}")
        for value in ("x", "x/1", "x/2", "y/end", "abc", "a1b2c", "ac", "abcd", "", "x*")
    }
    assert found == {
        "x": 1, "x/1": 2, "x/2": 1, "y/end": 4, "abc": 5, "a1b2c": 5, "ac": 6, "abcd": 6, "": 6, "x*": 1,
    }  # fmt: skip
    assert counts(tree, "other=x") is None


def test_a_key_that_ends_with_a_star_is_a_pattern_of_key_and_value(tmp_path):
    tree = tree_of(rows(('"ro*"', "")), tmp_path)
    assert [counts(tree, entry) for entry in ("route=a", "ro=b", "r=o")] == [1, 1, None]


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_a_pattern_matches_what_a_regular_expression_does(pattern, value):
    import re

    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), value) is not None
    if "*" in pattern:
        assert ValuePattern("k", pattern, DescriptorNode()).matches("k", value) == expected
        assert not ValuePattern("k", pattern, DescriptorNode()).matches("other", value)


def test_scalars_are_text_as_they_are_written(tmp_path):
    words = ["true", "010", "12:30", "1.50", "2026-01-01", "0x1F", "yes", "~", '"null"', "1e3"]
    text = rows(*[("k", f"value: {word}, ") for word in words])
    tree = tree_of(text.replace("domain: d", "domain: 1.0"), tmp_path)
    for number, word in enumerate(words, 1):
        entries = [("k", "" if word == "~" else word.strip('"'))]
        assert tree.find("1.0", entries).rate.count == number, word
    rate = '"rate_limit": {"unit": "day", "requests_per_unit": 7}'
    rest = '{"key": "k", "value": true}'
    (tmp_path / "x.json").write_text(
        f'{{"domain": "d",\n\t"descriptors": [{{"key": "k", "value": 1.50, {rate}}}, {rest}]}}'
    )
    tree = load(tmp_path / "x.json")
    assert counts(tree, "k=1.50") == 7
    assert ("k", "true") in tree.domains["d"].exact


def test_anchors_and_merges_are_read(tmp_path):
    text = """
    domain: d
    descriptors:
      - &one {key: k, value: 010, rate_limit: &rate {unit: day, requests_per_unit: 4}}
      - {<<: *one, value: 011}
      - {key: other, rate_limit: *rate}
    """
    tree = tree_of(text, tmp_path)
    assert [counts(tree, entry) for entry in ("k=010", "k=011", "other=x")] == [4, 4, 4]


def test_a_shared_pattern_counts_together_at_every_level(tmp_path):
    text = """
    domain: d
    descriptors:
      - key: files
        value: "top/*"
        share_threshold: true
        descriptors:
          - key: files
            value: "*.pdf"
            share_threshold: true
            descriptors: [{key: who, rate_limit: {unit: day, requests_per_unit: 1}}]
    """
    tree = tree_of(text, tmp_path)
    keys = {tree.find("d", [("files", f"top/{n}"), ("files", f"{n}.pdf"), ("who", "me")]).key for n in range(3)}
    assert keys == {("d", "files", "top/*", "files", "*.pdf", "who", "me")}


@pytest.mark.parametrize(
    ("flags", "metric"),
    [
        ("", "d.route_api/*.method"),
        ("value_to_metric: true,", "d.route_api/v1.method"),
        ("value_to_metric: true, share_threshold: true,", "d.route_api/*.method"),
    ],
)
@pytest.mark.parametrize(("detail", "detailed"), [("", False), ("detailed_metric: true,", True)])
def test_names_of_metrics(tmp_path, flags, metric, detail, detailed):
    text = f"""
    domain: d
    descriptors:
      - {{key: route, value: "api/*", {flags} descriptors: [
          {{key: method, {detail} rate_limit: {{unit: day, requests_per_unit: 1}}}}]}}
    """
    found = tree_of(text, tmp_path).find("d", [("route", "api/v1"), ("method", "GET")])
    shown = "*" if "share" in flags else "v1"
    assert found.metric == (f"d.route_api/{shown}.method_GET" if detailed else metric)
    assert found.rate.path == "d.route_api/*.method"


def test_files_of_a_folder_may_add_to_one_domain(tmp_path):
    (tmp_path / "1.yaml").write_text(rows(("k", 'value: "x*", '), ("one", "")))
    (tmp_path / "2.yml").write_text(rows(("k", 'value: "xy*", '), ("two", "")))
    (tmp_path / ".hidden.yaml").write_text("domain: [")
    tree = load(tmp_path)
    assert [counts(tree, entry) for entry in ("one=x", "two=x", "k=xyz")] == [2, 2, 1]
    (tmp_path / "3.yaml").write_text(rows(("one", "")))
    with pytest.raises(InvalidRules, match=r"3.yaml: descriptors\[0\].*expected a key of its own, got 'one'"):
        load(tmp_path)


def test_a_mistake_is_told_with_its_line(tmp_path):
    with pytest.raises(InvalidRules, match=r"^x.yaml: descriptors\[1\].value, line 4: expected text"):
        tree_of("domain: d\ndescriptors:\n  - key: a\n  - {key: b, value: {}}\n", tmp_path)


def test_a_folder_of_files_is_taken_together(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\ndescriptors: [{{key: a}}]\n")
    assert set(load(tmp_path).domains) == {"one", "two"}


def limit_of(**rate):
    descriptors = Descriptors()
    descriptors.add(rated(**rate), "x.yaml")
    (found,) = descriptors.rates
    return found.limit


@pytest.mark.parametrize(("unit", "days"), [("month", 30), ("year", 365)])
def test_a_month_has_30_days_and_a_year_365_from_1970_on_as_in_envoyproxy_ratelimit(unit, days):
    start = 650 * 30 * DAY if unit == "month" else 55 * 365 * DAY
    clock = FakeClock(start + days * DAY - 1)
    limiter = Limiter(limit_of(unit=unit), clock=clock)
    assert limiter.check("a").allowed
    decision = limiter.check("a")
    assert (decision.allowed, decision.retry_after) == (False, 1.0)
    clock.advance(1)
    assert limiter.check("a").allowed


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        ({"unit": "month", "window": "calendar"}, "1/month"),
        ({"unit": "MONTH", "window": "calendar", "timezone": "Europe/Berlin"}, "1/month calendar Europe/Berlin"),
        ({"unit": "year", "window": "calendar"}, "1/year"),
        ({"unit": "day", "window": "calendar", "timezone": "Asia/Tokyo"}, "1/day calendar Asia/Tokyo"),
        ({"unit": "month", "window": "first-use"}, "1 per 30 days first-use"),
        ({"unit": "month"}, "1 per 30 days fixed_window"),
        ({"unit": "year"}, "1 per 365 days fixed_window"),
        ({"unit": "week"}, "1/week fixed_window"),
    ],
)
def test_windows_of_a_rate_limit(rate, limit):
    assert str(limit_of(**rate)) == limit

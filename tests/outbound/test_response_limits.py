"""The limits of servers in every dialect, and hostile values."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratekeeper.outbound.dates import LONGEST
from ratekeeper.outbound.response_limits import Quota, ServerLimits, read, read_grpc
from tests import tier

NOW = 1_794_821_400.0  # Mon, 16 Nov 2026 09:30:00 GMT
DATE = ("Date", "Mon, 16 Nov 2026 09:30:00 GMT")


def wait(*headers, present=NOW - 7200):
    return read([DATE, *headers], present).wait


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("Mon, 16 Nov 2026 09:31:00 GMT", 60.0),
        ("Monday, 16-Nov-26 09:31:00 GMT", 60.0),
        ("Mon Nov 16 09:31:00 2026", 60.0),
        ("Mon, 16 Nov 2026 09:29:00 GMT", 0.0),
        ("9" * 30, LONGEST),
        ("1800000000", LONGEST),  # seconds, however many: never Unix time here
        ("Tue, 31 Dec 2999 00:00:00 GMT", LONGEST),
        ("-5", None),
        ("²", None),
        ("٣", None),
        ("1e3", None),
        ("inf", None),
        ("nan", None),
        ("", None),
        ("soon", None),
        ("Mon, 31 Feb 2026 09:31:00 GMT", None),
        ("Mon, 16 Foo 2026 09:31:00 GMT", None),
        ("1" * 10_000 + "x", None),
    ],
)
def test_retry_after(text, seconds):
    assert wait(("Retry-After", text)) == seconds


def test_a_date_is_compared_with_the_servers_own_clock():
    retry_after = ("Retry-After", "Mon, 16 Nov 2026 09:31:00 GMT")
    for wrong in (0.0, NOW - 1e6, NOW + 1e6):
        assert read([DATE, retry_after], wrong).wait == 60.0
    assert read([retry_after], NOW + 20).wait == 40.0
    assert read([("Date", "yesterday"), retry_after], NOW + 20).wait == 40.0


def quotas(*headers):
    return read([DATE, *headers], 0.0).quotas


def test_the_current_draft():
    headers = [
        ("RateLimit-Policy", '"per-key";q=600;w=60, "egress";q=5000000;w=3600;qu="content-bytes";pk=:dGVuYW50LTc=:'),
        ("RateLimit", '"per-key";r=0;t=4, "egress";r=99;t=10;pk=:dGVuYW50LTc=:;acme-burst=3'),
    ]
    assert quotas(*headers) == (
        Quota("per-key", 0, 4.0, 600, 60.0),
        Quota("egress", 99, 10.0, 5_000_000, 3600.0, "content-bytes"),
    )
    assert wait(*headers) == 4.0
    assert wait(*headers, ("Retry-After", "9")) == wait(("Retry-After", "9"), *headers) == 9.0
    assert wait(*headers, ("Retry-After", "2")) == 2.0  # Retry-After wins, also where it is shorter


def test_the_draft_after_it_names_them_anew():
    assert quotas(("RateLimit", "api;a=3;w=7;c=1")) == (Quota("api", 3, 7.0),)


@pytest.mark.parametrize(
    "headers",
    [
        [("RateLimit", "limit=10, remaining=1, reset=7"), ("RateLimit-Policy", "10;w=60")],
        [("RateLimit-Limit", "10"), ("RateLimit-Remaining", "1"), ("RateLimit-Reset", "7"),
         ("RateLimit-Policy", "1000;w=3600, 10;w=60")],
        [("RateLimit-Limit", "10, 10;w=60, 1000;w=3600"), ("RateLimit-Remaining", "1"), ("RateLimit-Reset", "7")],
        [("X-RateLimit-Limit", '10, 10;w=60;name="slow"'), ("X-RateLimit-Remaining", "1"), ("X-RateLimit-Reset", "7")],
    ],
)  # fmt: skip
def test_older_dialects(headers):
    assert quotas(*headers) == (Quota("", 1, 7.0, 10, 60.0),)


def test_vendors():
    github = [("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1794821460"),
              ("x-ratelimit-used", "60"), ("x-ratelimit-resource", "core")]  # fmt: skip
    assert quotas(*github) == (Quota("", 0, 60.0, 60),)
    twitter = [("x-rate-limit-limit", "15"), ("x-rate-limit-remaining", "3"), ("x-rate-limit-reset", "1794821460")]
    assert quotas(*twitter) == (Quota("", 3, 60.0, 15),)
    openai = [("x-ratelimit-limit-tokens", "30000"), ("x-ratelimit-remaining-tokens", "29000"),
              ("x-ratelimit-reset-tokens", "2s"), ("x-ratelimit-remaining-requests", "0"),
              ("x-ratelimit-reset-requests", "120ms"), ("retry-after-ms", "250")]  # fmt: skip
    limits = read(openai, 0.0)
    assert limits.quotas == (Quota("tokens", 29_000, 2.0, 30_000, None, "tokens"), Quota("requests", 0, 0.12))
    assert (limits.wait, limits.micros) == (0.25, 250_000)
    anthropic = [("anthropic-ratelimit-input-tokens-remaining", "5"), ("anthropic-ratelimit-input-tokens-limit", "9"),
                 ("anthropic-ratelimit-input-tokens-reset", "2026-11-16T09:30:08Z")]  # fmt: skip
    assert quotas(*anthropic) == (Quota("input-tokens", 5, 8.0, 9, None, "tokens"),)
    kong = [("X-RateLimit-Limit-Minute", "5"), ("X-RateLimit-Remaining-Minute", "2")]
    assert quotas(*kong) == (Quota("minute", 2, None, 5, 60.0),)


@pytest.mark.parametrize(
    "field",
    [
        '"a";r=1.5', '"a";r=?1', '"a";t=-3', '"a";r=-1', '"a";r=1000000000000000', '"a";r=1;t', '("a");r=1', '5;r=1',
        '"a";r=1,', '"a";R=1', '"é";r=1', '"a', '"a";r=1;;', '"a" ;r=1',
    ],
)  # fmt: skip
def test_a_malformed_field_is_ignored(field):
    quotas_found = quotas(("RateLimit", field))
    assert all(quota.reset_after is None for quota in quotas_found)
    assert wait(("RateLimit", field)) is None


def test_the_last_of_doubled_parameters_counts():
    assert quotas(("RateLimit", '"a";r=1;r=2')) == (Quota("a", 2),)


def test_the_limits_of_a_cached_response_are_ignored():
    headers = [DATE, ("Retry-After", "9"), ("RateLimit", '"a";r=0;t=4')]
    for cached in (("Age", "3"), ("X-From-Cache", "1")):
        assert read([*headers, cached], NOW) == ServerLimits()
    assert read([*headers, ("Age", "0")], NOW).wait == 9.0
    assert read([*headers, ("Age", "old")], NOW).wait == 9.0


names = st.sampled_from([
    "Retry-After", "retry-after-ms", "Date", "Age", "RateLimit", "RateLimit-Policy", "RateLimit-Limit",
    "RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
    "x-ratelimit-reset-tokens", "anthropic-ratelimit-requests-reset", "X-RateLimit-Remaining-Minute",
])  # fmt: skip
pieces = st.sampled_from([
    "0", "1", "-1", "9" * 16, "9" * 19, "9" * 5000, "1e999", "nan", "inf", "²", "٣", '"a"', ";r=", ";t=", ";w=", ",",
    "=", " ", "remaining", "reset", "limit", "Mon, 16 Nov 2026 09:31:00 GMT", "Mon, 16 Nov 0000 09:31:00 GMT", "s", "m",
    "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", ":", "\0", "\r\n", "(", "1794821460",
    "Mon Nov 99 99:99:99 2026", "Sunday, 29-Feb-99 23:59:60 GMT",
])  # fmt: skip
values = st.text(max_size=30) | st.lists(pieces, max_size=5).map("".join)


@given(st.lists(st.tuples(names, values), max_size=8), st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=tier.examples(400))
@example([("Date", "Sunday, 29-Feb-99 23:59:60 GMT")], 1e300)
@example([("Retry-After", "Sunday, 29-Feb-99 23:59:60 GMT")], -1e300)
def test_nothing_that_is_sent_crashes_or_stalls_a_client(headers, present):
    """Attack 43: hostile values of Retry-After and all other fields."""

    limits = read(headers, present)
    for seconds in (limits.wait, *[quota.reset_after for quota in limits.quotas]):
        assert seconds is None or 0.0 <= seconds <= LONGEST
    assert limits.micros is None or 0 <= limits.micros <= LONGEST * 1_000_000
    assert all(0 <= quota.remaining < 10**15 for quota in limits.quotas)


def status(seconds=0, nanos=0):
    from google.protobuf import any_pb2, duration_pb2
    from google.rpc import error_details_pb2, status_pb2

    info = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=seconds, nanos=nanos))
    other = error_details_pb2.ErrorInfo(reason="QUOTA", domain="x")
    found = status_pb2.Status(code=8, message="slow down")
    for detail in (other, info):
        packed = any_pb2.Any()
        packed.Pack(detail)
        found.details.append(packed)
    return found.SerializeToString()


def test_grpc_retry_info_and_pushback():
    assert read_grpc([("grpc-status-details-bin", status(4, 500_000_000))]).wait == 4.5
    assert read_grpc([("grpc-status-details-bin", status())]).wait == 0.0
    assert read_grpc([("grpc-status-details-bin", status(-5))]).wait == 0.0
    assert read_grpc([("grpc-status-details-bin", status(10**11))]).wait == LONGEST
    assert read_grpc([("x", "y")]).wait is None
    assert read_grpc([("grpc-retry-pushback-ms", "250")]).wait == 0.25
    assert read_grpc([("grpc-retry-pushback-ms", b"250")]).wait == 0.25
    assert read_grpc([("grpc-retry-pushback-ms", "-1")]).never
    assert read_grpc([("grpc-retry-pushback-ms", "soon")]).never


@given(st.binary(max_size=80) | st.integers(0, 200).map(lambda at: status(4, 5)[:at]))
@settings(max_examples=tier.examples(200))
def test_no_bytes_crash_the_reader_of_details(data):
    wait = read_grpc([("grpc-status-details-bin", data)]).wait
    assert wait is None or 0.0 <= wait <= LONGEST


@pytest.mark.parametrize(
    ("retry_after", "ratelimit", "seconds"),
    [
        ("1", '"r";r=0;t=1;ratekeeper-t=0.1', 0.1),
        ("2", '"r";r=0;t=2;ratekeeper-t=1.001', 1.001),
        ("1", '"a";r=0;t=1;ratekeeper-t=0.1, "b";r=0;t=1;ratekeeper-t=0.7', 0.7),
        ("3", '"r";r=0;t=1;ratekeeper-t=0.1', 3.0),  # Retry-After is not the rounded time: another program set it
        ("1", '"r";r=0;t=2;ratekeeper-t=1.5', 1.0),
        ("1", '"r";r=0;t=1', 1.0),
        ("1", '"r";r=0;t=1;ratekeeper-t="0.1"', 1.0),
        ("1", '"r";r=0;t=1;ratekeeper-t=-0.1', 1.0),
        ("1", '"r";r=0;t=1;ratekeeper-t=0.0', 1.0),
        ("1", '"r";r=0;t=1;ratekeeper-t=7.5', 1.0),
        ("1", '"r";r=0;ratekeeper-t=0.1', 1.0),
        ("1.5", '"r";r=0;t=2;ratekeeper-t=1.2', 1.5),
        (None, '"r";r=0;t=1;ratekeeper-t=0.1', 0.1),
    ],
)
def test_the_exact_time_of_our_own_servers_refines_whole_seconds_and_nothing_else(retry_after, ratelimit, seconds):
    fields = [("RateLimit", ratelimit)] + ([("Retry-After", retry_after)] if retry_after else [])
    assert wait(*fields) == seconds

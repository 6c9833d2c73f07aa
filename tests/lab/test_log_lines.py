"""Log lines: every supported format, and any other text."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import InvalidInput
from ratekeeper.lab.log_lines import Block, LineReader, detect_zone

SAMPLE = Path(__file__).parents[1] / "data" / "nasa-aug95-400.log"
NOON = int(datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()) * 1_000_000


def read(*lines, **options):
    reader = LineReader("access.log", **options)
    block = reader.read("".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass"))
    events = [
        (at, client, text, block.facts.get(place))
        for place, (at, client, text) in enumerate(zip(block.times, block.clients, block.request_lines, strict=True))
    ]
    return events, reader


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ('1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5', (0, "1.2.3.4", "GET / HTTP/1.1", None)),
        ('h.example - - [01/Mar/2026:13:00:01 +0100] "GET /a?b=c HTTP/1.0" 304 -',
         (1_000_000, "h.example", "GET /a?b=c HTTP/1.0", None)),
        ('::1 - - [01/Mar/2026:11:59:59 -0000] "POST /x HTTP/2.0" 200 1 "https://e/" "curl/8"',
         (-1_000_000, "::1", "POST /x HTTP/2.0", None)),
        ('1.2.3.4 - ann [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5',
         (0, "1.2.3.4", "GET / HTTP/1.1", {"user": "ann"})),
        ('1.2.3.4 - a b [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5',
         (0, "1.2.3.4", "GET / HTTP/1.1", {"user": "a b"})),
        (r'1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "GET /\"quoted\" HTTP/1.1" 200 5',
         (0, "1.2.3.4", r"GET /\"quoted\" HTTP/1.1", None)),
        ('1.2.3.4 - - [01/Mar/2026:12:00:00.250 +0000] "GET / HTTP/1.1" 200 5',
         (250_000, "1.2.3.4", "GET / HTTP/1.1", None)),
        ('1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "\\x16\\x03\\x01" 400 0', (0, "1.2.3.4", r"\x16\x03\x01", None)),
        ('1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "" 400 0', (0, "1.2.3.4", "", None)),
    ],
)  # fmt: skip
def test_common_and_combined_lines(line, event):
    for lines in ([line], ['9.9.9.9 - - [01/Mar/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 5', line, line]):
        events, reader = read(*lines, zone="written")
        assert events[-1] == (NOON + event[0], *event[1:])
        assert len(events) == len(lines)
        assert reader.bad == 0


def test_headers_come_along_when_rules_need_them():
    line = '1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5 "https://e/" "curl/8"'
    assert read(line, wants_facts=True)[0][0][3] == {"referer": "https://e/", "user-agent": "curl/8"}


def test_bad_lines_are_counted_and_shown_and_the_others_are_read():
    good = '1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5'
    lines = [good, "garbage", good, "", '1.2.3.4 - - [31/Feb/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5', good,
             '1.2.3.4 - - [01/Mar/2026:12:00:61 +0000] "GET / HTTP/1.1" 200 5', good]  # fmt: skip
    events, reader = read(*lines)
    assert len(events) == 5  # a leap second is the last of its minute
    assert (reader.lines, reader.bad) == (8, 2)
    assert [(line.number, line.reason) for line in reader.bad_examples] == [
        (2, "not an access log line"),
        (5, "no readable time"),
    ]


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n"), max_size=80), max_size=8))
def test_every_line_of_any_log_is_read_or_counted(lines):
    good = '1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5'
    mixed = [good, *lines, good]
    events, reader = read(*mixed)
    blank = sum(not line.strip() for line in mixed)
    assert len(events) + reader.bad + blank == len(mixed) == reader.lines
    assert events[0] == events[-1] == (NOON, "1.2.3.4", "GET / HTTP/1.1", None)


fields = st.text(alphabet='ab:[]"\\ -/\t0', max_size=12)


@given(st.lists(st.tuples(fields, fields, st.integers(0, 200_000), st.sampled_from(["+0000", "-0430"])), max_size=8))
def test_the_fast_path_reads_what_the_slow_one_reads(rows):
    lines = [
        f'{client} - - [{datetime.fromtimestamp(1_700_000_000 + at, UTC):%d/%b/%Y:%H:%M:%S} {zone}] "{text}" 200 5'
        for client, text, at, zone in rows
    ]
    for zone in ("written", "ignored"):
        events, reader = read(*lines, zone=zone, format="common")
        slow = LineReader("access.log", format="common", zone=zone)
        block = slow.read_slow_lines(lines)
        assert [event[:3] for event in events] == list(
            zip(block.times, block.clients, block.request_lines, strict=True)
        )
        assert (reader.bad, reader.lines) == (slow.bad, slow.lines)


def test_json_lines_of_known_servers():
    nginx = {"time_iso8601": "2026-03-01T13:00:00+01:00", "remote_addr": "1.2.3.4", "request": "GET /a HTTP/1.1"}
    traefik = {"StartUTC": "2026-03-01T12:00:00.5Z", "ClientHost": "1.2.3.4", "RequestMethod": "POST",
               "RequestPath": "/b", "ClientUsername": "-", "RequestHost": "e.org"}  # fmt: skip
    framework = {"ts": 1772366400.25, "ip": "1.2.3.4", "path": "/c", "user": "ann"}
    millis = {"timestamp": 1772366400250, "client": "1.2.3.4", "method": "PUT", "url": "/d"}
    caddy = {"ts": 1772366400.5, "request": {"remote_ip": "9.9.9.9", "client_ip": "1.2.3.4", "method": "GET",
             "host": "e.org", "uri": "/e", "headers": {"X-Team": ["red"]}}, "user_id": "", "status": 200}  # fmt: skip
    events, reader = read(*map(json.dumps, [nginx, traefik, framework, millis, caddy]))
    assert reader.format == "json"
    assert events == [
        (NOON, "1.2.3.4", "GET /a HTTP/1.1", None),
        (NOON + 500_000, "1.2.3.4", "POST /b", {"host": "e.org"}),
        (NOON + 250_000, "1.2.3.4", "GET /c", {"user": "ann"}),
        (NOON + 250_000, "1.2.3.4", "PUT /d", None),
        (NOON + 500_000, "1.2.3.4", "GET /e", {"host": "e.org"}),
    ]
    fields = {"header:X-Team": "request.headers.X-Team"}
    assert read(json.dumps(caddy), fields=fields)[0][0][3] == {"host": "e.org", "x-team": "red"}


def test_a_field_map_finds_nested_fields_and_headers():
    line = json.dumps({"at": 1772366400, "who": {"ip": "1.2.3.4"}, "target": "/x", "h.x": "key", "path": "/wrong"})
    fields = {"time": "at", "client": "who.ip", "path": "target", "header:X-Api-Key": "h.x"}
    assert read(line, fields=fields)[0] == [(NOON, "1.2.3.4", "GET /x", {"x-api-key": "key"})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "no time: expected one of time, timestamp, ts, @timestamp, time_iso8601, time_local, msec, StartUTC, "
         "date"),
        ('{"time": "now", "client": "a", "path": "/"}', "no readable time: 'now'"),
        ('{"time": [], "client": "a", "path": "/"}', "no time: expected a number or text, got []"),
        ('{"time": 1e300, "client": "a", "path": "/"}', "expected a time between 1970 and 2112, got 1e+300"),
        ('{"time": NaN, "client": "a", "path": "/"}', "no readable time: nan"),
        ('{"time": 5, "client": 7, "path": "/"}', "no client: expected text, got 7"),
    ],
)  # fmt: skip
def test_bad_json_lines_say_why(line, reason):
    events, reader = read('{"time": 5, "client": "a", "path": "/"}', line)
    assert len(events) == 1
    assert (reader.bad_examples[0].number, reader.bad_examples[0].reason) == (2, reason)


def test_zones_that_contradict_the_order_are_ignored():
    lines = SAMPLE.read_text().splitlines()
    assert detect_zone(lines) == "ignored"
    events, reader = read(*lines)
    assert [event[0] for event in events] == sorted(event[0] for event in events)
    assert reader.zone == "ignored"


def test_zones_of_daylight_saving_time_are_used():
    lines = [f'1.1.1.1 - - [25/Oct/2026:{hour}:30:00 {zone}] "GET / HTTP/1.1" 200 5'
             for hour, zone in [("01", "+0200"), ("02", "+0200"), ("02", "+0100"), ("03", "+0100")]]  # fmt: skip
    events, reader = read(*lines)
    assert reader.zone == "written"
    assert [event[0] // 3_600_000_000 for event in events] == [events[0][0] // 3_600_000_000 + n for n in range(4)]


def test_blocks_keep_facts_with_their_events():
    block = Block([3, 1, 2], ["c", "a", "b"], ["z", "x", "y"], {0: {"user": "cee"}, 2: {"user": "bee"}})
    ordered = block.in_order()
    assert (ordered.times, ordered.clients, ordered.request_lines) == ([1, 2, 3], ["a", "b", "c"], ["x", "y", "z"])
    assert ordered.facts == {1: {"user": "bee"}, 2: {"user": "cee"}}
    assert ordered.part(1, 3).facts == {0: {"user": "bee"}, 1: {"user": "cee"}}
    assert ordered.part(0, 1).followed_by(ordered.part(2, 3)).facts == {1: {"user": "cee"}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "clf"}, "format: expected auto, common, vhost, json, got 'clf'."),
        ({"zone": "mars"}, "zone: expected auto, written or ignored, got 'mars'."),
        ({"fields": {"clinet": "ip"}}, "fields: expected time, client, method, path, request, user, host or "
         "header:NAME, got 'clinet'. Did you mean 'client'?"),
    ],
)  # fmt: skip
def test_errors_in_arguments(options, message):
    with pytest.raises(InvalidInput) as error:
        LineReader("x", **options)
    assert str(error.value) == message


@pytest.mark.parametrize("year", [1969, 2113, 9999])
def test_a_year_that_the_rules_cannot_count_is_a_bad_line(year):
    good = '1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5'
    for lines in ([good, good.replace("2026", str(year))], [good.replace("2026", str(year)), good]):
        events, reader = read(*lines)
        assert [at for at, *_ in events] == [NOON]
        assert [bad.reason for bad in reader.bad_examples] == ["no readable time"]


@pytest.mark.parametrize(
    ("client", "address"),
    [
        ("203.0.113.9:51234", "203.0.113.9"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"),
        ("host.example", "host.example"),
        ("a:b", "a:b"),
        (":80", ":80"),
        ("[", "["),
    ],
)
def test_a_port_is_no_part_of_a_client(client, address):
    line = json.dumps({"time": "2026-03-01T12:00:00Z", "client": client, "path": "/"})
    assert [result for _, result, *_ in read(line)[0]] == [address]


def test_a_virtual_host_in_front_of_a_line_is_not_its_client():
    stamp = '[01/Mar/2026:12:00:01 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"'
    lines = [
        f"shop.example:443 203.0.113.9 - - {stamp}", f"shop.example:80 2001:db8::1 - ann {stamp}",
        f"shop.example 198.51.100.7 - - {stamp}", f"shop.example:443 old.example - - {stamp}",
        f"192.0.2.1 - - {stamp}",
    ]  # fmt: skip
    clients = ["203.0.113.9", "2001:db8::1", "198.51.100.7", "old.example", "192.0.2.1"]
    for wants_facts in (False, True):
        reader = LineReader("log", wants_facts=wants_facts)
        block = reader.read("".join(f"{line}\n" for line in lines).encode())
        assert (reader.format, block.clients, reader.bad) == ("vhost", clients, 0)
        assert [block.facts.get(place, {}).get("user") for place in range(5)] == [None, "ann", None, None, None]
        hosts = [block.facts.get(place, {}).get("host") for place in range(5)]
        assert hosts == (["shop.example"] * 4 + [None] if wants_facts else [None] * 5)


def test_a_client_with_a_port_or_an_identity_is_no_virtual_host():
    stamp = '[01/Mar/2026:12:00:01 +0000] "GET / HTTP/1.1" 200 5'
    reader = LineReader("log")
    block = reader.read(f"203.0.113.9:4711 - - {stamp}\n2001:db8::1 - ann {stamp}\n10.0.0.1 bob - {stamp}\n".encode())
    assert (reader.format, block.clients) == ("common", ["203.0.113.9:4711", "2001:db8::1", "10.0.0.1"])

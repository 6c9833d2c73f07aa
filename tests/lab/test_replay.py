"""replay: what rules do to a log is what the policy does to its requests."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import InvalidInput, Policy, Request, StoreUnavailable, lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.identity.address import Addresses
from ratekeeper.lab.clock import VirtualClock
from ratekeeper.lab.decide_log import ClientAddresses, LogDecider
from ratekeeper.lab.log_lines import Block
from ratekeeper.lab.plots import save_replay
from ratekeeper.lab.report import write_replay
from ratekeeper.testing import FakeClock
from tests import tier
from tests.lab.samples import EPOCH, ONE, RULES, SAMPLE, rules

MANY = rules(
    {"by": "ip", "limit": "4 per 10 seconds burst 2"},
    {"by": "all", "limit": "6 per 5 seconds sliding_window"},
    {"by": "ip", "match": "/b/**", "limit": ["2 per 10 seconds fixed_window", "5/minute"]},
)
WHOLE = rules(
    {"by": "ip", "limit": "2 per 10 seconds", "grace": 1},
    {"by": ["ip", "method"], "limit": "3 per 10 seconds"},
    {"by": "ip", "match": "/b/**", "limit": "1 per 10 seconds", "mode": "shadow"},
    {"by": "ip", "limit": "5 per 30 seconds", "penalty": {"after": 2, "within": "1 minute", "block": "20 seconds"}},
)
CLIENTS = ["1.1.1.1", "2.2.2.2", "old.example"]
PATHS = ["GET /a HTTP/1.1", "POST /b/c HTTP/1.1", "GET /b/d?e HTTP/1.0", "nonsense"]
events = st.lists(
    st.tuples(st.integers(0, 60_000_000), st.sampled_from(CLIENTS), st.sampled_from(PATHS)), max_size=40
).map(lambda found: sorted(found, key=lambda event: event[0]))


@settings(max_examples=tier.examples(40))
@given(events, st.sampled_from([ONE, MANY, WHOLE]), st.integers(1, 40))
def test_each_way_decides_what_the_policy_decides(found, given_rules, size):
    clock = VirtualClock()
    decider = LogDecider(Policy.parse(given_rules, clock=clock), clock)
    refused = []
    for start in range(0, len(found), size):
        times, clients, texts = zip(*found[start : start + size], strict=True)
        refusals = decider.decide(Block([EPOCH + at for at in times], list(clients), list(texts)))
        refused += [
            (start + place, rule, None if wait < 0 else wait / 1_000_000)
            for place, rule, wait in zip(refusals.places, refusals.rules, refusals.waits, strict=True)
        ]
    fake = FakeClock()
    policy = Policy.parse(given_rules, clock=fake)
    peers = ClientAddresses(Addresses())
    expected = []
    for number, (at, client, text) in enumerate(found):
        fake.move_to(EPOCH + at)
        method, path = text.split(" ")[:2] if " " in text else ("-", "/")
        verdict = policy.check(Request(method, path, peers[client]))
        if not verdict.allowed:
            expected.append((number, verdict.rule, verdict.retry_after))
    assert [one[0] for one in refused] == [one[0] for one in expected]
    assert [one[2] for one in refused] == [one[2] for one in expected]
    for own, other in zip(refused, expected, strict=True):
        if own[1] != other[1]:  # two rules that refuse for equally long: either may be named
            assert given_rules is MANY


def test_the_sample_log():
    found = lab.replay(SAMPLE, RULES)
    assert (found.lines, found.requests, found.bad_lines, found.zones) == (400, 400, 0, ("ignored",))
    assert found.refused == sum(rule.refused for rule in found.rules) == sum(found.refused_in_bin) > 0
    assert sum(found.asked_in_bin) == 400
    assert found.clients == len(found.everyone) == sum(rank.clients for rank in found.ranks)
    assert sum(client.requests for client in found.everyone) == 400
    assert sum(client.refused for client in found.everyone) == found.refused
    assert sum(rank.requests for rank in found.ranks) == 400
    assert sum(rank.refused for rank in found.ranks) == found.refused
    assert sum(path.refused for path in found.top_refused_paths) <= found.refused
    assert found.rules[0].asked == 400 > found.rules[1].asked > 0
    assert (found.first_at, found.last_at) == ("1995-08-01T00:00:01Z", "1995-08-01T00:11:11Z")
    assert found.exact


def test_who_was_refused_when_by_which_rule_for_how_long(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(
        f'{client} - - [14/Nov/2023:22:{minute:02}:{second:02} +0000] "GET /x HTTP/1.1" 200 1\n'
        for minute, second, client in [(0, 0, "1.1.1.1"), (0, 1, "1.1.1.1"), (0, 2, "1.1.1.1"), (0, 30, "2.2.2.2"),
                                       (5, 0, "1.1.1.1"), (5, 4, "1.1.1.1"), (5, 9, "1.1.1.1")]
    ))  # fmt: skip
    found = lab.replay(path, rules({"by": "ip", "limit": "1 per 10 seconds"}))
    (client,) = found.top_refused
    assert (client.client, client.requests, client.refused, client.busiest_minute) == ("1.1.1.1", 6, 4, 3)
    assert client.rules == {"rule0": 4}
    assert (client.first_refused_at, client.last_refused_at) == ("2023-11-14T22:00:01Z", "2023-11-14T22:05:09Z")
    assert client.longest_refused == 9.0 == found.rules[0].longest_wait  # from 22:00:01 to 22:00:10
    assert found.top_refused_paths[0] == lab.replay(path, ONE).top_paths[0].__class__("/x", 7, 4)


def test_users_tiers_and_headers_of_a_json_log_are_counted(tmp_path):
    path = tmp_path / "log.json"
    path.write_text("".join(
        json.dumps({"ts": 1_700_000_000 + number, "ip": f"1.1.1.{number}", "path": "/", "key": key}) + "\n"
        for number, key in enumerate(["a", "a", "a", "b"])
    ))  # fmt: skip
    given_rules = rules({"by": "header:X-Key", "limit": "2/minute"})
    found = lab.replay(path, given_rules, fields={"header:X-Key": "key"})
    assert [(client.client, client.refused) for client in found.everyone if client.refused] == [("1.1.1.2", 1)]
    assert lab.replay(path, given_rules).refused == 0  # without the map, each address is somebody


def test_rules_in_shadow_refuse_nobody_and_are_told(tmp_path):
    found = lab.replay(SAMPLE, rules({"by": "ip", "limit": "1/minute", "mode": "shadow"}))
    assert found.refused == 0
    assert found.refused_in_shadow == found.rules[0].refused_in_shadow > 100


def test_rules_about_places_in_flight_are_told():
    found = lab.replay(SAMPLE, rules({"by": "ip", "limit": "1 concurrent"}))
    assert found.refused == 0
    assert "rule0 limits concurrency; a log has no durations, so this rule refused nothing." in found.warnings


def test_names_of_hosts_count_apart():
    peers, others = ClientAddresses(Addresses()), ClientAddresses(Addresses())
    assert len({peers[f"host{number}.example"] for number in range(1000)}) == 1000
    assert peers["host1.example"] == others["host1.example"]
    assert peers["1.2.3.4"] == "1.2.3.4"


def test_an_empty_log_is_no_mistake(tmp_path):
    (tmp_path / "log").write_text("")
    found = lab.replay(tmp_path / "log", RULES, suggest=0.001)
    assert (found.requests, found.refused, found.clients, found.suggestions) == (0, 0, 0, ())
    assert str(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], ONE, {}), "replay: expected at least one log file, got none."),
        ((SAMPLE, ONE, {"suggest": 2}), "suggest: expected a share from 0 to 1, such as 0.001, got 2."),
    ],
)
def test_mistakes_are_told(arguments, message):
    logs, given_rules, options = arguments
    with pytest.raises(InvalidInput) as error:
        lab.replay(logs, given_rules, **options)
    assert str(error.value) == message


def test_progress_is_told():
    told = []
    lab.replay(SAMPLE, ONE, suggest=0.01, progress=lambda *words: told.append(words))
    size = SAMPLE.stat().st_size
    assert told[-2:] == [("reading", size, size), ("looking for limits", 1, 1)]


def test_a_store_that_is_not_there_ends_the_experiment():
    """Nothing decides in its place: the figures would be of something else."""
    for run in (lambda store: lab.replay(SAMPLE, RULES, store=store), lambda store: lab.simulate("5/s", store=store)):
        with pytest.raises(StoreUnavailable, match=r"^redis://127\.0\.0\.1:1/0: could not be reached"):
            run("redis://127.0.0.1:1/0")


def test_the_same_trace_gives_the_same_decisions_in_every_store(any_server):
    """In memory, in shared memory and on Redis or Valkey, fed with the trace's own times; all of them new."""
    from uuid import uuid4

    from ratekeeper.stores.shared import remove

    name = f"lab-{uuid4().hex}"
    stores = ["memory://", f"shm://{name}", f"{any_server.url}?prefix={name}"]
    outcomes = [lab.replay(SAMPLE, RULES, store=store) for store in stores]
    assert outcomes[0].refused > 0
    for other in outcomes[1:]:
        assert other.everyone == outcomes[0].everyone
        assert other.rules == outcomes[0].rules
    lanes = [lab.simulate("5/second", "on_off", algorithms=ALGORITHMS, seconds=6, clients=3, store=store).lanes
             for store in stores]  # fmt: skip
    remove(name)
    assert lanes[0] == lanes[1] == lanes[2]


def stamped(second, client="1.2.3.4", user="-", path="/"):
    return f'{client} - {user} [01/Mar/2026:12:00:{second:02} +0000] "GET {path} HTTP/1.1" 200 5\n'


def test_a_user_of_the_log_stands_for_one_of_a_token(tmp_path):
    (tmp_path / "log").write_text("".join(stamped(second, f"10.0.0.{second}", "ann") for second in range(9)))
    found = lab.replay(
        tmp_path / "log",
        {"identity": {"user": ["header:X-Api-Key"]}, **rules({"by": "user", "limit": "4/hour fixed_window"})},
    )
    assert (found.requests, found.refused) == (9, 5)
    assert not any("the log has no" in warning for warning in found.warnings)


def test_what_the_log_does_not_tell_is_said(tmp_path):
    (tmp_path / "log").write_text("".join(stamped(second) for second in range(9)))
    found = lab.replay(
        tmp_path / "log",
        {
            "identity": {"user": ["header:X-Api-Key"]},
            **rules({"by": "user", "limit": "4/hour"}, {"by": ["ip", "header:X-Team"], "limit": "3/hour"}),
        },
    )
    assert found.warnings[-2:] == (
        "rule0 counts by user; the log has no user field, so this rule counted by address.",
        "rule1 counts by header:X-Team; the log has no header:X-Team field, so this rule counted by address.",
    )
    assert found.refused == 6


def test_an_empty_log_is_no_log_of_1970(tmp_path):
    (tmp_path / "log").write_text("")
    found = lab.replay(tmp_path / "log", ONE, suggest=0.001, against=MANY)
    assert (found.first_at, found.last_at, found.requests) == ("", "", 0)
    assert str(found).startswith("the logs have no requests\n")
    assert "1970" not in str(found)
    save_replay(found, tmp_path / "empty.svg")


def test_what_breaks_off_and_steps_back_is_said(tmp_path):
    (tmp_path / "log.gz").write_bytes(gzip.compress(stamped(1).encode() * 3000)[:-40])
    text = str(lab.replay(tmp_path / "log.gz", ONE))
    ended = "Compressed file ended before the end-of-stream marker was reached"
    assert f"log.gz: {ended}; the lines before that are counted" in text
    late = [stamped(second).replace(":12:", ":13:") for second in range(60) for _ in range(60)]
    early = [stamped(second) for second in range(60) for _ in range(60)]
    (tmp_path / "log").write_text("".join([*late, *early]))
    found = lab.replay(tmp_path / "log", ONE)
    assert (found.requests, found.set_back) == (7200, 1)
    assert "the clock of a log was set back (1 time); the lines after that are shifted to follow on" in str(found)


def test_a_text_that_is_no_text_can_be_written(tmp_path):
    """A JSON string may hold half of a pair of surrogates, which no file can."""
    (tmp_path / "log").write_text('{"time": 5, "client": "\\ud800", "path": "/\\udfff", "user": "\\ud801"}\n' * 9)
    found = lab.replay(tmp_path / "log", rules({"by": "user", "limit": "3/minute"}))
    write_replay(found, tmp_path / "report.html")
    found.write_csv(tmp_path / "clients.csv")
    assert (found.refused, found.clients) == (6, 1)
    str(found).encode()

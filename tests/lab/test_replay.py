"""replay: what rules do to a log is what the policy does to its requests."""

import gzip
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import InvalidInput, Policy, Request, StoreUnavailable, lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.identity.address import Addresses
from ratekeeper.lab.clock import VirtualClock
from ratekeeper.lab.decide_log import ClientAddresses, LogDecider, Refusals
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
).map(lambda rows: sorted(rows, key=lambda event: event[0]))


@settings(max_examples=tier.examples(40))
@given(events, st.sampled_from([ONE, MANY, WHOLE]), st.integers(1, 40))
def test_every_path_decides_what_the_policy_decides(rows, rules_table, size):
    clock = VirtualClock()
    decider = LogDecider(Policy.parse(rules_table, clock=clock), clock)
    refused = []
    for start in range(0, len(rows), size):
        times, clients, texts = zip(*rows[start : start + size], strict=True)
        refusals = decider.decide(Block([EPOCH + at for at in times], list(clients), list(texts)))
        refused += [
            (start + place, rule, None if wait < 0 else wait / 1_000_000)
            for place, rule, wait in zip(refusals.places, refusals.rules, refusals.waits, strict=True)
        ]
    fake = FakeClock()
    policy = Policy.parse(rules_table, clock=fake)
    addresses = ClientAddresses(Addresses())
    expected = []
    for number, (at, client, text) in enumerate(rows):
        fake.move_to(EPOCH + at)
        method, path = text.split(" ")[:2] if " " in text else ("-", "/")
        verdict = policy.check(Request(method, path, addresses[client]))
        if not verdict.allowed:
            expected.append((number, verdict.rule, verdict.retry_after))
    assert [row[0] for row in refused] == [row[0] for row in expected]
    assert [row[2] for row in refused] == [row[2] for row in expected]
    for actual, other in zip(refused, expected, strict=True):
        if actual[1] != other[1]:  # if two rules refuse for equally long, either may be named
            assert rules_table is MANY


def test_the_sample_log():
    result = lab.replay(SAMPLE, RULES)
    assert (result.lines, result.requests, result.bad_lines, result.zones) == (400, 400, 0, ("ignored",))
    assert result.refused == sum(rule.refused for rule in result.rules) == sum(result.refused_in_bin) > 0
    assert sum(result.asked_in_bin) == 400
    assert result.clients == len(result.everyone) == sum(rank.clients for rank in result.ranks)
    assert sum(client.requests for client in result.everyone) == 400
    assert sum(client.refused for client in result.everyone) == result.refused
    assert sum(rank.requests for rank in result.ranks) == 400
    assert sum(rank.refused for rank in result.ranks) == result.refused
    assert sum(path.refused for path in result.top_refused_paths) <= result.refused
    assert result.rules[0].asked == 400 > result.rules[1].asked > 0
    assert (result.first_at, result.last_at) == ("1995-08-01T00:00:01Z", "1995-08-01T00:11:11Z")
    assert result.exact


def test_the_outcome_of_a_client(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(
        f'{client} - - [14/Nov/2023:22:{minute:02}:{second:02} +0000] "GET /x HTTP/1.1" 200 1\n'
        for minute, second, client in [(0, 0, "1.1.1.1"), (0, 1, "1.1.1.1"), (0, 2, "1.1.1.1"), (0, 30, "2.2.2.2"),
                                       (5, 0, "1.1.1.1"), (5, 4, "1.1.1.1"), (5, 9, "1.1.1.1")]
    ))  # fmt: skip
    result = lab.replay(path, rules({"by": "ip", "limit": "1 per 10 seconds"}))
    (client,) = result.top_refused
    assert (client.client, client.requests, client.refused, client.busiest_minute) == ("1.1.1.1", 6, 4, 3)
    assert client.rules == {"rule0": 4}
    assert (client.first_refused_at, client.last_refused_at) == ("2023-11-14T22:00:01Z", "2023-11-14T22:05:09Z")
    assert client.longest_refused == 9.0 == result.rules[0].longest_wait  # from 22:00:01 to 22:00:10
    assert result.top_refused_paths[0] == lab.replay(path, ONE).top_paths[0].__class__("/x", 7, 4)


def test_users_tiers_and_headers_of_a_json_log_are_counted(tmp_path):
    path = tmp_path / "log.json"
    path.write_text("".join(
        json.dumps({"ts": 1_700_000_000 + number, "ip": f"1.1.1.{number}", "path": "/", "key": key}) + "\n"
        for number, key in enumerate(["a", "a", "a", "b"])
    ))  # fmt: skip
    rules_table = rules({"by": "header:X-Key", "limit": "2/minute"})
    result = lab.replay(path, rules_table, fields={"header:X-Key": "key"})
    assert [(client.client, client.refused) for client in result.everyone if client.refused] == [("1.1.1.2", 1)]
    assert lab.replay(path, rules_table).refused == 0  # without the field, the rule counts by address


def test_rules_in_shadow_refuse_nothing_and_are_counted(tmp_path):
    result = lab.replay(SAMPLE, rules({"by": "ip", "limit": "1/minute", "mode": "shadow"}))
    assert result.refused == 0
    assert result.refused_in_shadow == result.rules[0].refused_in_shadow > 100


def test_concurrency_rules_give_a_warning():
    result = lab.replay(SAMPLE, rules({"by": "ip", "limit": "1 concurrent"}))
    assert result.refused == 0
    assert "rule0 limits concurrency; a log has no durations, so this rule refused nothing." in result.warnings


def test_host_names_get_distinct_addresses():
    addresses, others = ClientAddresses(Addresses()), ClientAddresses(Addresses())
    assert len({addresses[f"host{number}.example"] for number in range(1000)}) == 1000
    assert addresses["host1.example"] == others["host1.example"]
    assert addresses["1.2.3.4"] == "1.2.3.4"


def test_an_empty_log_is_no_error(tmp_path):
    (tmp_path / "log").write_text("")
    result = lab.replay(tmp_path / "log", RULES, suggest=0.001)
    assert (result.requests, result.refused, result.clients, result.suggestions) == (0, 0, 0, ())
    assert str(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], ONE, {}), "replay: expected at least one log file, got none."),
        ((SAMPLE, ONE, {"suggest": 2}), "suggest: expected a share from 0 to 1, such as 0.001, got 2."),
    ],
)
def test_errors_in_arguments(arguments, message):
    logs, rules_table, options = arguments
    with pytest.raises(InvalidInput) as error:
        lab.replay(logs, rules_table, **options)
    assert str(error.value) == message


def test_progress_is_reported():
    reports = []
    lab.replay(SAMPLE, ONE, suggest=0.01, progress=lambda *words: reports.append(words))
    size = SAMPLE.stat().st_size
    assert reports[-2:] == [("reading", size, size, 400), ("looking for limits", 1, 1, 0)]


def test_an_unavailable_store_ends_the_experiment():
    """There is no fallback, whatever the rules say: the figures would be those of another experiment."""
    allows = rules({"by": "ip", "limit": "5/minute", "on_store_error": "allow"})
    for run in (
        lambda store: lab.replay(SAMPLE, RULES, store=store),
        lambda store: lab.replay(SAMPLE, allows, store=store),
        lambda store: lab.simulate("5/s", store=store),
    ):
        with pytest.raises(StoreUnavailable, match=r"^redis://127\.0\.0\.1:1/0: could not be reached"):
            run("redis://127.0.0.1:1/0")


def test_the_same_trace_gives_the_same_decisions_in_every_store(any_server):
    """In memory, in shared memory and on Redis or Valkey, on the time of the trace."""
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


def test_the_user_field_stands_for_the_user_of_a_token(tmp_path):
    (tmp_path / "log").write_text("".join(stamped(second, f"10.0.0.{second}", "ann") for second in range(9)))
    result = lab.replay(
        tmp_path / "log",
        {"identity": {"user": ["header:X-Api-Key"]}, **rules({"by": "user", "limit": "4/hour fixed_window"})},
    )
    assert (result.requests, result.refused) == (9, 5)
    assert not any("the log has no" in warning for warning in result.warnings)


@settings(max_examples=tier.examples(40))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 60_000_000),
            st.sampled_from(CLIENTS),
            st.sampled_from([{}, {"user": "ann"}, {"user": "bob"}, {"x-key": "k"}, {"user": "ann", "host": "h"}]),
        ),
        max_size=40,
    ).map(lambda rows: sorted(rows, key=lambda event: event[0])),
    st.sampled_from([["jwt:sub"], ["header:X-Key"], ["cookie:session"]]),
    st.integers(1, 40),
)
def test_users_are_decided_in_batches_as_one_by_one(rows, sources, size):
    """The same events through the batches, and through Policy.check for each of them."""
    table = {"identity": {"user": sources}, **rules({"by": "user", "limit": "2 per 10 seconds"})}
    if sources == ["jwt:sub"]:
        table["identity"]["jwt"] = {"secret": "x" * 32, "algorithms": ["HS256"]}
    clock = VirtualClock()
    refused = []
    for one_by_one in (False, True):
        policy = Policy.parse(table, clock=clock)
        policy.compiled.identity.add_user_source("app:user")
        decider = LogDecider(policy, clock)
        decider.is_fast = decider.is_fast and not one_by_one
        places = []
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            facts = {place: row[2] for place, row in enumerate(part) if row[2]}
            block = Block(
                [EPOCH + at for at, _, _ in part],
                [client for _, client, _ in part],
                ["GET / HTTP/1.1"] * len(part),
                facts,
            )
            if one_by_one:
                refusals = Refusals()
                for place, line in enumerate(map(decider.request_line, block.request_lines)):
                    clock.hand[0] = block.times[place] * 1000
                    decider.decide_with_policy(place, line, block.clients[place], facts.get(place, {}), refusals)
            else:
                refusals = decider.decide(block)
            places += [start + place for place in refusals.places]
        refused.append(places)
    assert refused[0] == refused[1]


def test_clients_of_a_rule_by_user_have_the_names_of_users(tmp_path):
    (tmp_path / "log").write_text(
        "".join(stamped(second, f"1.1.1.{second}", "ann") for second in range(9)) + stamped(9)
    )
    result = lab.replay(tmp_path / "log", rules({"by": "user", "limit": "4/hour fixed_window"}))
    assert [(client.client, client.requests, client.refused) for client in result.everyone] == [
        ("ann", 9, 5), ("1.2.3.4", 1, 0)
    ]  # fmt: skip
    (changed,) = lab.replay(
        tmp_path / "log", ONE, against=rules({"by": "user", "limit": "4/hour"})
    ).comparison.newly_allowed_clients
    assert changed == ("ann", 5)


def test_fields_that_the_log_lacks_give_a_warning(tmp_path):
    (tmp_path / "log").write_text("".join(stamped(second) for second in range(9)))
    result = lab.replay(
        tmp_path / "log",
        {
            "identity": {"user": ["header:X-Api-Key"]},
            **rules({"by": "user", "limit": "4/hour"}, {"by": ["ip", "header:X-Team"], "limit": "3/hour"}),
        },
    )
    assert result.warnings[-2:] == (
        "rule0 counts by user; the log has no user field, so this rule counted by address.",
        "rule1 counts by header:X-Team; the log has no header:X-Team field, so this rule counted by address.",
    )
    assert result.refused == 6


def test_an_empty_log_has_no_dates(tmp_path):
    (tmp_path / "log").write_text("")
    result = lab.replay(tmp_path / "log", ONE, suggest=0.001, against=MANY)
    assert (result.first_at, result.last_at, result.requests) == ("", "", 0)
    assert str(result).startswith("the logs have no requests\n")
    assert "1970" not in str(result)
    save_replay(result, tmp_path / "empty.svg")


def test_truncated_logs_and_clock_resets_are_reported(tmp_path):
    (tmp_path / "log.gz").write_bytes(gzip.compress(stamped(1).encode() * 3000)[:-9])
    result = lab.replay(tmp_path / "log.gz", ONE)
    ended = "Compressed file ended before the end-of-stream marker was reached"
    (broken,) = result.to_json()["broken"]
    assert result.requests == result.lines > 2900
    assert broken == f"{tmp_path / 'log.gz'}: the file is damaged after {result.lines:,} lines: {ended}"
    text = f"log.gz: the file is damaged after {result.lines:,} lines: {ended}; the lines before that are counted"
    assert text in str(result)
    write_replay(result, tmp_path / "report.html")
    assert text in (tmp_path / "report.html").read_text("utf-8")
    late = [stamped(second).replace(":12:", ":13:") for second in range(60) for _ in range(60)]
    early = [stamped(second) for second in range(60) for _ in range(60)]
    (tmp_path / "log").write_text("".join([*late, *early]))
    result = lab.replay(tmp_path / "log", ONE)
    assert (result.requests, result.set_back) == (7200, 1)
    assert (
        "the log goes back in time 1 time, as if its clock had been set back: the lines after that are shifted to "
        "follow on; if its lines are only out of order, use --sort"
    ) in str(result)


def test_lines_in_no_order_are_sorted_on_request(tmp_path):
    lines = [stamped(second, f"1.1.1.{second % 2}") for second in range(60) for _ in range(2)]
    (tmp_path / "in order").write_text("".join(lines))
    random.Random(5).shuffle(lines)
    (tmp_path / "log").write_text("".join(lines))
    expected = lab.replay(tmp_path / "in order", ONE)
    result = lab.replay(tmp_path / "log", ONE, sort=True)
    assert 0 < result.refused == expected.refused
    assert [(client.client, client.refused) for client in result.everyone] == [
        (client.client, client.refused) for client in expected.everyone
    ]
    assert (result.late_lines, result.set_back) == (0, 0)
    later = "".join(stamped(0).replace(":12:00:", f":13:{minute:02}:") for minute in range(60) for _ in range(60))
    (tmp_path / "late").write_text(later + stamped(0) + later[-200:])
    late = lab.replay(tmp_path / "late", ONE)
    assert (late.late_lines, late.set_back) == (1, 0)
    assert "1 line out of order by more than 10 s, counted at the time of the lines around; --sort puts" in str(late)


def test_lone_surrogates_can_be_written(tmp_path):
    """A JSON string may contain a lone surrogate, but no file can."""
    (tmp_path / "log").write_text('{"time": 5, "client": "\\ud800", "path": "/\\udfff", "user": "\\ud801"}\n' * 9)
    result = lab.replay(tmp_path / "log", rules({"by": "user", "limit": "3/minute"}))
    write_replay(result, tmp_path / "report.html")
    result.write_csv(tmp_path / "clients.csv")
    assert (result.refused, result.clients) == (6, 1)
    str(result).encode()

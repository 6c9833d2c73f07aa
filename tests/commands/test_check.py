"""ratekeeper check: what it says about a rules file."""

import json

from ratekeeper.stores.shared import segments
from tests.commands.command import run
from tests.servers import closed_port


def test_check_gives_advice(rules):
    result = run("check", rules, "--json")
    assert result.exit_code == 0
    assert json.loads(result.output)["advice"] == [
        "line 2: rule 'login' guards /login with a fixed window, which can admit twice its count around the end of a "
        "window. Use gcra or sliding_log.",
        "line 7: rule 'again' guards /login with a fixed window, which can admit twice its count around the end of a "
        "window. Use gcra or sliding_log.",
        "line 7: rule 'again' never refuses a request: 'login' counts the same and is stricter.",
    ]
    assert run("check", rules, "--strict").exit_code == 1


def test_check_warns_of_api_keys_that_are_not_verified(tmp_path):
    path = tmp_path / "rules.toml"
    text = 'by = "ip"\nlimit = "100/minute"\n[[rules]]\nname = "api"\nby = "user"\nlimit = "9/minute"\n'
    path.write_text('[identity]\nuser = ["header:X-Api-Key"]\n[[rules]]\nname = "ip"\n' + text)
    assert json.loads(run("check", path, "--json").output)["advice"] == [
        "line 7: rule 'api' counts by 'header:X-Api-Key' and accepts any value: a client that sends a new one each "
        "time is limited by the rules by ip only. List the keys you issued in [identity.api_keys]."
    ]


def test_check_rejects_an_invalid_file(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('[[rules]]\nname = "a"\nlimit = "0 concurrent"\n')
    result = run("check", path)
    assert result.exit_code == 2
    assert "bad.toml: rules[0].limit" in result.output


def check_json(path, *options, **environment):
    return json.loads(run("check", path, "--json", *options, **environment).output)


def test_check_shows_every_mistake_with_its_line(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(
        'trusted_proxies = ["10.0.0.0/8"]\n\n[[rules]]\nname = "a"\nlimit = "0 concurrent"\nby = "usr"\n\n'
        '[[rules]]\nname = "b"\nlimit = 5\nmodes = "off"\n\n[[rules]]\nmatch = "/x"\nlimit = "5/minute"\n'
    )
    result = run("check", path)
    assert result.exit_code == 2
    lines = result.output.splitlines()
    assert lines[0] == "5 mistakes:"
    assert [line.strip().partition(": expected")[0] for line in lines[1:]] == [
        "bad.toml: rules[1].limit (rule 'b'), line 10",
        "bad.toml: rules[1] (rule 'b'), line 11",
        "bad.toml: rules[2], line 13",
        "bad.toml: rules[0].by[0] (rule 'a'), line 6",
        "bad.toml: rules[0].limit (rule 'a'), line 5",
    ]


def test_a_key_that_means_nothing_hides_no_other_mistake(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(
        'colour = "red"\n[response]\nzebra = 1\n[[rules]]\nname = "a"\nlimit = "5/minit"\nquux = 3\nby = "usr"\n'
        '[[rules]]\nname = "b"\nmatsch = "/x"\nlimit = "x"\n'
    )
    lines = run("check", path).output.splitlines()
    assert [line.strip().partition(": expected")[0] for line in lines] == [
        "6 mistakes:",
        "bad.toml, line 1",
        "bad.toml: response, line 3",
        "bad.toml: rules[0] (rule 'a'), line 7",
        "bad.toml: rules[1] (rule 'b'), line 11",  # what it was meant to be is not known, so no more is said of rule b
        "bad.toml: rules[0].by[0] (rule 'a'), line 8",
        "bad.toml: rules[0].limit (rule 'a'), line 6",
    ]


def test_check_warns_of_what_has_no_effect_and_of_what_a_client_chooses(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rules]]\nname = "u"\nby = "user"\nlimit = "9/minute"\n'
        '[[rules]]\nname = "j"\nby = "jwt:sub"\nlimit = "9/minute"\n'
        '[[rules]]\nname = "h"\nby = ["ip", "host"]\nlimit = "9/minute"\n'
        '[[rules]]\nname = "c"\ncost = { from = "body" }\nlimit = "9/minute"\nmatch = "/c"\n'
        '[[rules]]\nname = "m"\ncost = { from = "body", most = 5 }\nlimit = "9/minute"\nmatch = "/m"\n'
    )
    found = check_json(path)
    assert found["advice"] == []
    assert found["warnings"] == [
        "identity: 'jwt:sub' is ignored, because there is no [identity.jwt] to verify tokens with. "
        "Clients are counted by the next source, or by address.",
        "line 1: rule 'u' counts by 'user', but identity.user does not say who that is, so each client is counted by "
        "address. Add [identity] with user = 'jwt:sub', 'app:user' or another source.",
        "line 13: rule 'c' takes its cost from the body, but a client can send a body without stating its length, "
        "which costs 1. Write cost = { from = 'body', most = N }: then such a body costs N.",
        "line 9: rule 'h' counts by 'host', which a client can change at will. "
        "Add a rule by ip for every path beside it.",
    ]
    assert run("check", path, "--strict").exit_code == 1


def test_check_asks_the_store(tmp_path):
    path = tmp_path / "rules.toml"
    with closed_port() as port:
        path.write_text(f'store = "redis://:secret@127.0.0.1:{port}/0"\n[[rules]]\nname = "a"\nlimit = "9/minute"\n')
        (warning,) = check_json(path)["warnings"]
        assert warning.startswith(f"the store does not answer: redis://127.0.0.1:{port}")
        assert "secret" not in warning
        assert run("check", path, "--strict").exit_code == 1
        assert check_json(path, "--offline")["warnings"] == []
        assert check_json(path, "--store", "memory://")["warnings"] == []
        assert check_json(path, env={"RATEKEEPER_STORE": "memory://"})["warnings"] == []
    result = run("check", path, "--store", "redis:/127.0.0.1")
    assert result.exit_code == 2
    assert "store" in result.output


def test_check_leaves_no_shared_memory_behind(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('store = "shm://check-leaves-nothing"\n[[rules]]\nname = "a"\nlimit = "9/minute"\n')
    assert check_json(path)["warnings"] == []
    assert "check-leaves-nothing" not in [segment.name for segment in segments()]

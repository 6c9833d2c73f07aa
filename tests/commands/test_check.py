"""ratekeeper check: what it says about a rules file."""

import json

from tests.commands.command import run


def test_check_gives_advice(rules):
    result = run("check", rules, "--json")
    assert result.exit_code == 0
    assert json.loads(result.output)["advice"] == [
        "rule 'login' guards /login with a fixed window, which can admit twice its count around the end of a window. "
        "Use gcra or sliding_log.",
        "rule 'again' guards /login with a fixed window, which can admit twice its count around the end of a window. "
        "Use gcra or sliding_log.",
        "rule 'again' never refuses a request: 'login' counts the same and is stricter.",
    ]
    assert run("check", rules, "--strict").exit_code == 1


def test_check_warns_of_api_keys_that_are_not_verified(tmp_path):
    path = tmp_path / "rules.toml"
    text = 'by = "ip"\nlimit = "100/minute"\n[[rules]]\nname = "api"\nby = "user"\nlimit = "9/minute"\n'
    path.write_text('[identity]\nuser = ["header:X-Api-Key"]\n[[rules]]\nname = "ip"\n' + text)
    assert json.loads(run("check", path, "--json").output)["advice"] == [
        "rule 'api' counts by 'header:X-Api-Key' and accepts any value: a client that sends a new one each time is "
        "limited by the rules by ip only. List the keys you issued in [identity.api_keys]."
    ]


def test_check_rejects_an_invalid_file(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('[[rules]]\nname = "a"\nlimit = "0/minute"\n')
    result = run("check", path)
    assert result.exit_code == 2
    assert "bad.toml: rules[0].limit" in result.output

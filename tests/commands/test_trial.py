"""ratekeeper try: calls against a limit."""

import json

from tests.commands.command import run


def test_try_makes_calls(rules):
    result = run("try", "2/hour", "--calls", "3").output
    assert result.count("admitted") == 2
    assert "retry in" in result
    typed = run("try", "5/hour", stdin="\n3\np\n2\nr\n2\nx\nq\n").output
    assert typed.count("admitted") == 4
    assert typed.count("refused") == 1


def test_try_prints_one_json_line_per_decision():
    lines = run("try", "2/hour", "--calls", "3", "--json").output.splitlines()
    assert [json.loads(line)["allowed"] for line in lines] == [True, True, False]

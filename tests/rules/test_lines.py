"""The line of each setting, in every format; and that a mistake anywhere names the right one."""

import json

import pytest
import yaml

from ratekeeper import InvalidRules, Policy
from ratekeeper.rules.lines import locator

TOML = '''# a comment = 1
store = "memory://"

[identity]
user = "app:user"
[identity.jwt]
"secret" = """
[not] a table
limit = 5
"""

[[rules]]
name = "a"
limit = "5/minute"
[rules.penalty]
after = 3

[[ rules ]]  # another
name = 'b'
match = [
  "/x",
]
response."body" = 1
'''


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("store",), 2),
        (("identity",), 4),
        (("identity", "user"), 5),
        (("identity", "jwt", "secret"), 7),
        (("rules", 0), 12),
        (("rules", 0, "limit"), 14),
        (("rules", 0, "penalty", "after"), 16),
        (("rules", 0, "penalty", "block"), 15),
        (("rules", 1), 18),
        (("rules", 1, "match", 0), 20),
        (("rules", 1, "response", "body"), 23),
        (("nowhere",), None),
    ],
)
def test_toml(keys, line):
    assert locator(TOML, ".toml")(keys) == line


CONTENT = {
    "store": "memory://",
    "rules": [{"name": "a", "limit": ["1/minute", "x: {["]}, {"name": "b", "by": {"c": 1}}],
}


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_json_and_yaml(suffix):
    text = json.dumps(CONTENT, indent=1) if suffix == ".json" else yaml.safe_dump(CONTENT, sort_keys=False)
    locate, lines = locator(text, suffix), text.splitlines()
    for keys, word in [
        (("store",), "store"), (("rules",), "rules"), (("rules", 0, "name"), "a"), (("rules", 0, "limit", 1), "x: {["),
        (("rules", 1, "name"), "b"), (("rules", 1, "by", "c"), "c"), (("rules", 1, "by", "d"), "by"),
    ]:  # fmt: skip
        assert word in lines[locate(keys) - 1], keys
    assert locate(("nowhere",)) is None


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".toml"])
def test_a_mistake_names_its_line_and_all_mistakes_are_named(suffix, tmp_path):
    rules = [{"name": f"r{number}", "limit": "5/minute"} for number in range(3)]
    rules[0]["limit"] = "5/minuet"
    rules[2]["by"] = "nobody"
    if suffix == ".toml":
        text = "\n".join("[[rules]]\n" + "\n".join(f'{k} = "{v}"' for k, v in rule.items()) for rule in rules)
    else:
        text = (json.dumps if suffix == ".json" else yaml.safe_dump)({"rules": rules}, indent=2)
    path = tmp_path / f"rules{suffix}"
    path.write_text(text)
    with pytest.raises(InvalidRules) as raised:
        Policy.load(path)
    first, second = raised.value.mistakes
    lines = text.splitlines()
    assert "minuet" in lines[first.line - 1]
    assert "nobody" in lines[second.line - 1]
    assert (first.keys, second.keys) == (("rules", 0, "limit"), ("rules", 2, "by", 0))
    assert str(raised.value) == f"2 mistakes:\n  {first}\n  {second}"
    assert f", line {first.line}: expected" in str(first)

"""Attack 7: a long path against patterns with several placeholders in a segment.

With backtracking, these took from seconds to days.  Now a test that would not end fails by its timeout; that each
character is searched once is counted in tests/rules/test_match.py.
"""

import pytest

from ratekeeper import Policy, Request

LONGEST_HEAD = 32_768  # of the service; other servers take up to 64 KiB


@pytest.mark.parametrize(
    ("match", "path"),
    [
        ("/{a}-{b}-{c}-{d}-{e}x", "/" + "-" * LONGEST_HEAD),
        ("/{a}-{b}-{c}-{d}-{e}x/y", "/" + "-" * LONGEST_HEAD + "x/z"),
        ("/**/{a}-{b}-{c}-{d}x", "/" + "-" * LONGEST_HEAD),
        ("/" + "/".join(["{a}-{b}"] * 20), "/-" * (LONGEST_HEAD // 2)),
        ("/**/" + "/".join(["*a*a*"] * 20), "/aab" * (LONGEST_HEAD // 4)),
    ],
)
def test_07_no_path_is_slow_to_match(match, path):
    rules = [{"name": f"r{number}", "match": match, "limit": "1/day"} for number in range(100)]
    policy = Policy.parse({"rules": [*rules, {"name": "all", "match": "/**", "limit": "5/day"}]})
    verdict = policy.check(Request(path=path, peer="203.0.113.9"))
    assert verdict.allowed
    assert verdict.names[-1] == "all"

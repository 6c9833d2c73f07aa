"""An explanation says every step and takes nothing."""

from ratekeeper import Policy, Request
from tests.rules.deciding import HERE, count, make


def test_explain_says_every_step_and_takes_nothing():
    policy, _ = make(
        {"limit": "2/minute"},
        {"match": "GET /a/{id}", "by": ["ip", "user"], "limit": {"free": ["5/minute", "9/hour"], "gold": "unlimited"}},
        {"match": "POST /a/*", "limit": "1/minute"},
        {"limit": "1/day", "mode": "off"},
        {"limit": "1/day", "mode": "shadow"},
        {"match": "/admin/**", "allow_from": ["10.0.0.0/8"]},
        {"limit": "1/day", "exempt": ["203.0.113.0/24"]},
        trusted_proxies=["10.0.0.0/8"],
        identity={"user": "app:user"},
        tiers={"from": "app:tier", "default": "free"},
    )
    for _ in range(3):
        told = str(policy.explain(Request("GET", "/a/./7", HERE, headers={"Host": "Api.Example:443"})))
    assert told.splitlines() == [
        "GET /a/./7 is read as GET /a/./7 and /a/7 on api.example",
        "from 203.0.113.9, counted as 203.0.113.9",
        "user: not known, so the address is used",
        "tier: free",
        "  + r0  2/minute, by ip, cost 1: 2 of 2 left",
        "  + r1  5/minute, 9/hour of tier free, by ip and user, cost 1: 5 of 5 left",
        "  - r2  matches POST /a/*, not this",
        "  - r3  is off",
        "  + r4  1/day, by ip, cost 1: 1 of 1 left (in shadow: refuses nobody)",
        "  - r5  matches /admin/**, not this",
        "  - r6  exempts this caller",
    ]
    count(policy, 3)
    steps = {step.rule: step for step in policy.explain(Request("GET", "/admin/x", HERE, facts={"tier": "gold"})).steps}
    assert steps["r0"].text == "2/minute, by ip, cost 1: would refuse, free in 30 s"
    assert steps["r5"].text == "refuses with 403: allowed from 10.0.0.0/8 only"
    unlimited = policy.explain(Request("GET", "/a/1", HERE, facts={"tier": "gold"}))
    assert unlimited.steps[1].text == "is unlimited for tier gold"


def test_explain_tells_blocks_costs_and_what_can_never_pass():
    policy, _ = make(
        {"limit": "1/second", "penalty": {"after": 1, "within": "1 minute", "block": "1 hour"}},
        {"match": "/big", "limit": "2/minute", "cost": 5},
        {"match": "/odd", "limit": "2/minute", "cost": "header:X-Cost"},
        {"match": "/inside", "allow_from": ["203.0.113.0/24"]},
        {"limit": "9/minute", "enforce_percent": 0, "by": lambda request: request.path},
    )
    count(policy, 2)
    paths = ["/big", "/odd", "/inside"]
    told = [
        [step.text for step in policy.explain(Request("GET", path, HERE, {"X-Cost": "x"})).steps if step.applies]
        for path in paths
    ]
    assert told[0][:2] == [
        "1/second, by ip, cost 1: blocked for 3600 s more by its penalty",
        "2/minute, by ip, cost 5: can never pass: at most 2 at once",
    ]
    assert told[1][1] == "refuses with 400: the request states a cost that is not a whole number"
    assert told[2][1] == "allows this address, and limits nothing"
    assert told[2][2] == "9/minute, by <lambda>, cost 1: 9 of 9 left (not enforced for this key)"
    preflight = Request("OPTIONS", "/", HERE, {"Origin": "https://a.example", "Access-Control-Request-Method": "PUT"})
    assert "a CORS preflight: not counted" in policy.explain(preflight).lines


def test_exclusions_and_defaults_are_explained():
    policy = Policy.parse({
        "exempt": ["/metrics"],
        "rules": [
            {"name": "rest", "default": True, "limit": "9/minute"},
            {"name": "api", "match": ["/api/**", "!/api/health"], "limit": "5/minute"},
        ],
    })  # fmt: skip

    def texts(path):
        return [step.text.partition(":")[0] for step in policy.explain(Request(path=path, peer="192.0.2.1")).steps]

    assert texts("/api/x") == ["is a default, and 'api' limits this path", "5/minute, by ip, cost 1"]
    assert texts("/api/health") == ["9/minute, by ip, cost 1", "excludes this path"]
    assert texts("/other") == ["9/minute, by ip, cost 1", "matches /api/**, not this"]
    assert texts("/metrics") == ["excludes this path", "matches /api/**, not this"]

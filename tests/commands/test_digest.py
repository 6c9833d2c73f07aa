"""ratekeeper digest: what it prints is what a service shows."""

import json

import pytest

from tests.commands.command import run
from tests.service.running import running

SECRET = 'secret = "0123456789abcdef0123456789abcdef"\n'
RULES = """
[[rules]]
name = "a"
by = "ip"
limit = "1/hour"
"""


def refused(service):
    service.worker.routes.dashboard.tick()
    return [client for client, _ in service.call("GET", "/v1/status")[2]["refused_clients"]]


@pytest.mark.parametrize("settings", ["", SECRET, SECRET + "[identity]\nipv6_prefix = 48\n"])
@pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8:1:2::9", "::ffff:198.51.100.7"])
def test_an_address_has_the_digest_that_the_service_shows(tmp_path, settings, address):
    with running(tmp_path, settings + RULES, admin_token="sesame") as service:
        url = f"http://127.0.0.1:{service.addresses['http'][1]}"
        for _ in range(2):
            service.post("/v1/check", {"request": {"ip": address}})
        (shown,) = refused(service)
        asked = run("digest", address, "--url", url, "--admin-token", "sesame")
        assert asked.output == shown + "\n"
        by_file = run("digest", address, "--rules", tmp_path / "rules.toml")
        if settings:
            assert by_file.output == shown + "\n"
        else:
            assert by_file.exit_code == 2
            assert "rules.toml: expected secret = '...' at the top, got none" in by_file.output


KEYS = [
    (["user:42"], "user:42"),
    (["login", "42"], ["login", "42"]),
    (["--key", "203.0.113.9"], "203.0.113.9"),
    (["x" * 300], "x" * 300),
]


@pytest.mark.parametrize(("words", "key"), KEYS)
def test_a_key_has_the_digest_that_the_service_shows(tmp_path, words, key):
    settings = SECRET + "[identity]\nipv4_prefix = 24\n"  # an address is counted by its network, a key is not
    with running(tmp_path, settings + RULES, admin_token="sesame") as service:
        for _ in range(2):
            service.post("/v1/check", {"key": key, "limit": "1/hour"})
        (shown,) = refused(service)
        assert run("digest", *words, "--rules", tmp_path / "rules.toml").output == shown + "\n"
        environment = {"RATEKEEPER_URL": f"http://127.0.0.1:{service.addresses['http'][1]}",
                       "RATEKEEPER_ADMIN_TOKEN": "sesame"}  # fmt: skip
        assert json.loads(run("digest", *words, "--json", env=environment).output) == {"digest": shown}


def test_only_the_admin_may_ask(tmp_path):
    with running(tmp_path, RULES, token="open", admin_token="sesame") as service:
        url = f"http://127.0.0.1:{service.addresses['http'][1]}"
        result = run("digest", "203.0.113.9", "--url", url, "--admin-token", "open")
        assert result.exit_code == 2
        assert "Give --admin-token or RATEKEEPER_ADMIN_TOKEN." in result.output.replace("\n", " ")


def test_json_says_what_is_counted(tmp_path):
    (tmp_path / "rules.toml").write_text(SECRET + RULES)
    answer = json.loads(run("digest", "2001:db8:1:2::9", "-r", tmp_path / "rules.toml", "--json").output)
    assert answer["counted"] == "2001:db8:1:2::/64"

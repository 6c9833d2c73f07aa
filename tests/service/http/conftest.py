"""One service for each file of tests, with rules of its own; no time passes for it."""

import pytest

from tests.service.running import running

RULES = """
trusted_proxies = ["127.0.0.1"]

[[rules]]
name = "per-ip"
by = "ip"
limit = "5/hour"

[[rules]]
name = "post"
match = "POST /submit"
by = "ip"
limit = "2/hour"

[[rules]]
name = "later"
match = "/shadow"
by = "ip"
limit = "1/hour"
mode = "shadow"
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    with running(folder, RULES, admin_token="open sesame", state=folder, still=True) as found:
        yield found

"""A rules file for commands."""

import pytest

RULES = """
[[rules]]
name = "login"
match = "POST /login"
limit = "5/minute fixed_window"

[[rules]]
name = "again"
match = "POST /login"
limit = "500/minute fixed_window"
"""


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path

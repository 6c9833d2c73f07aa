"""ratekeeper info: the engine of this process."""

import json

from tests.commands.command import run


def test_info_names_the_engine():
    assert json.loads(run("info", "--json").output)["engine"] in ("native", "pure")

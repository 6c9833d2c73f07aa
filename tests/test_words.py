"""One word per idea: no class name of the package means two things."""

import re
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "ratekeeper"
CLASS = re.compile(r"^ *class (\w+)[(:]", re.M)

# One idea in several frameworks: users import the class of theirs.
PER_FRAMEWORK = {"RateLimitMiddleware", "PacingTimeout", "PacedTransport", "AsyncPacedTransport", "RateLimiter"}


def test_a_class_name_is_used_once():
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in CLASS.findall(path.read_text("utf-8")):
            places[name].append(path.relative_to(SOURCE).as_posix())
    assert len(places) > 200
    twice = {name: paths for name, paths in places.items() if len(paths) > 1 and name not in PER_FRAMEWORK}
    assert not twice

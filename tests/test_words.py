"""One word per idea: no class name of the package means two things."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "ratekeeper"

# One idea in several frameworks: users import the class of theirs.
PER_FRAMEWORK = {"RateLimitMiddleware", "PacingTimeout", "PacedTransport", "AsyncPacedTransport"}


def test_a_class_name_is_used_once():
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(SOURCE).as_posix())
    assert len(places) > 200
    twice = {name: paths for name, paths in places.items() if len(paths) > 1 and name not in PER_FRAMEWORK}
    assert not twice

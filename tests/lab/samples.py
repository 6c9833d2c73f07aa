"""One real log, and rules for it."""

from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "data" / "nasa-aug95-400.log"
RULES = Path(__file__).parents[2] / "examples" / "lab" / "rules.toml"
EPOCH = 1_700_000_000_000_000


def rules(*tables):
    return {"rules": [{"name": f"rule{number}", **rule} for number, rule in enumerate(tables)]}


ONE = rules({"by": "ip", "limit": "3 per 10 seconds"})

"""``ratekeeper info``: version, engine and platform."""

from __future__ import annotations

from ratekeeper.commands.output import AS_JSON, out, print_json


def info(as_json: bool = AS_JSON) -> None:
    """Print the version, the engine and the platform."""
    from ratekeeper import info as read_info

    facts = read_info()
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        out.print(f"{name:16} {value}", markup=False)

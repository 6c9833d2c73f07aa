"""``ratekeeper info``: what decides here."""

from __future__ import annotations

from ratekeeper.commands.output import AS_JSON, out, show_json


def info(as_json: bool = AS_JSON) -> None:
    """Say which version, engine and platform this is."""
    from ratekeeper import info as facts

    found = facts()
    if as_json:
        show_json(found)
        return
    for name, value in found.items():
        out.print(f"{name:16} {value}", markup=False)

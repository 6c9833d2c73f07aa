"""``ratekeeper check``: is this rules file right, and is it wise?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratekeeper.commands.output import AS_JSON, mistakes, out, show_json


def check(
    rules: Annotated[Path, typer.Argument(help="A rules file, or one of envoyproxy/ratelimit with --envoy.")],
    envoy: Annotated[bool, typer.Option("--envoy", help="It is a file of envoyproxy/ratelimit.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is any advice.")] = False,
    as_json: bool = AS_JSON,
) -> None:
    """Look for mistakes in a rules file, and give advice.

    \b
    ratekeeper check rules.toml
    ratekeeper check rules.toml --strict --json

    Exit code 0: can be used; 1: only with --strict, there is advice; 2: cannot be used.
    """
    from ratekeeper.rules.lint import advise
    from ratekeeper.rules.policy import Policy

    with mistakes(as_json):
        if envoy:
            from ratekeeper.service.envoy.config import load

            count, advice = len(load(rules).rates), list[str]()
        else:
            policy = Policy.load(rules, store="memory://")
            count, advice = len(policy.rules), [*policy.warnings, *advise(policy.rules, policy.program.identity)]
    if as_json:
        show_json({"rules": count, "advice": advice})
    else:
        out.print(f"{rules.name}: {count} rule{'s' if count != 1 else ''}, no mistakes", style="green", markup=False)
        for line in advice:
            out.print(f"  advice: {line}", style="yellow", markup=False, soft_wrap=True)
    if strict and advice:
        raise typer.Exit(1)

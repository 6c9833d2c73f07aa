"""``ratekeeper check``: validate a rules file, and give advice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratekeeper.commands.output import AS_JSON, out, print_json, report_errors


def check(
    rules: Annotated[Path, typer.Argument(help="The rules file; with --envoy, an envoyproxy/ratelimit file.")],
    envoy: Annotated[bool, typer.Option("--envoy", help="Read an envoyproxy/ratelimit file.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is any advice.")] = False,
    as_json: bool = AS_JSON,
) -> None:
    """Validate a rules file, and give advice.

    \b
    ratekeeper check rules.toml
    ratekeeper check rules.toml --strict --json

    Exit code 0: the file is valid; 1: there is advice (only with --strict); 2: the file is invalid.
    """
    from ratekeeper.rules.lint import advise
    from ratekeeper.rules.policy import Policy

    with report_errors(as_json):
        if envoy:
            from ratekeeper.service.envoy.config import load

            count, advice = len(load(rules).rates), list[str]()
        else:
            policy = Policy.load(rules, store="memory://")
            count, advice = len(policy.rules), [*policy.warnings, *advise(policy.rules, policy.compiled.identity)]
    if as_json:
        print_json({"rules": count, "advice": advice})
    else:
        out.print(f"{rules.name}: {count} rule{'s' if count != 1 else ''}, no errors", style="green", markup=False)
        for line in advice:
            out.print(f"  advice: {line}", style="yellow", markup=False, soft_wrap=True)
    if strict and advice:
        raise typer.Exit(1)

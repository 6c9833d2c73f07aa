"""``ratekeeper check``: validate a rules file, and give advice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ratekeeper.commands.output import AS_JSON, out, print_json, report_errors

if TYPE_CHECKING:
    from ratekeeper.rules.policy import Policy


def check(
    rules: Annotated[Path, typer.Argument(help="The rules file; with --envoy, an envoyproxy/ratelimit file.")],
    envoy: Annotated[bool, typer.Option("--envoy", help="Read an envoyproxy/ratelimit file.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is a warning or advice.")] = False,
    store: Annotated[
        str | None, typer.Option(metavar="URL", envvar="RATEKEEPER_STORE", help="Store URL, overrides the rules file.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the store whether it answers.")] = False,
    as_json: bool = AS_JSON,
) -> None:
    """Validate a rules file and its store, and give advice.  All mistakes of the file are shown, each with its line.

    \b
    ratekeeper check rules.toml
    ratekeeper check rules.toml --strict --json
    ratekeeper check rules.toml --offline

    A warning is a setting that has no effect, that a client can avoid, or a store that does not answer.
    Exit code 0: the file is valid; 1: there is a warning or advice (only with --strict); 2: the file is invalid.
    """
    from ratekeeper.rules.lint import advise
    from ratekeeper.rules.policy import Policy

    with report_errors(as_json):
        if envoy:
            from ratekeeper.service.envoy.config import load

            count, warnings, advice = len(load(rules).rates), list[str](), list[str]()
        else:
            policy = Policy.load(rules, store="memory://")
            count = len(policy.rules)
            warnings = [*policy.warnings, *([] if offline else trouble_with(store or policy.store_url))]
            advice = advise(policy.rules, policy.compiled.identity)
            line_of = lines_of(rules, policy)
            warnings, advice = [line_of(text) for text in warnings], [line_of(text) for text in advice]
    if as_json:
        print_json({"rules": count, "warnings": warnings, "advice": advice})
    else:
        out.print(f"{rules.name}: {count} rule{'s' if count != 1 else ''}, no errors", style="green", markup=False)
        for kind, lines in (("warning", warnings), ("advice", advice)):
            for line in lines:
                out.print(f"  {kind}: {line}", style="yellow", markup=False, soft_wrap=True)
    if strict and (warnings or advice):
        raise typer.Exit(1)


def trouble_with(store: str) -> list[str]:
    """Why the store does not answer; empty if it does.  A URL that is no store raises InvalidStore."""
    from ratekeeper.stores.inspect import try_store

    trouble = try_store(store)
    if not trouble:
        return []
    return [f"the store does not answer: {trouble}. Start it, or correct its URL; --offline skips this question."]


def lines_of(path: Path, policy: Policy) -> Callable[[str], str]:
    """A function that puts the line of its rule in front of a sentence about a rule."""
    from ratekeeper.rules.files import read

    locate = read(path).locate
    lines = {f"rule {rule.name!r} ": locate(("rules", number)) for number, rule in enumerate(policy.rules)}

    def with_line(text: str) -> str:
        line = next((line for start, line in lines.items() if text.startswith(start)), None)
        return f"line {line}: {text}" if line is not None else text

    return with_line

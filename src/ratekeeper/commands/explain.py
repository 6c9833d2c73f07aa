"""``ratekeeper explain``: which rules apply to a request, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratekeeper.commands.output import AS_JSON, out, print_json, report_errors


def explain(
    rules: Annotated[Path, typer.Argument(help="The rules file.")],
    request: Annotated[str, typer.Argument(help="Method and path, such as 'GET /x'.")],
    ip: Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the connection's peer.")] = "203.0.113.9",
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="Request header, 'Name: value'. May be repeated.")
    ] = None,
    fact: Annotated[
        list[str] | None, typer.Option(help="Fact verified by the application, 'user=42'. May be repeated.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Host of the request.")] = None,
    as_json: bool = AS_JSON,
) -> None:
    """Explain step by step which rules apply to a request, with which keys and limits.

    \b
    ratekeeper explain rules.toml "GET /api/search" --ip 198.51.100.7
    ratekeeper explain rules.toml "POST /login" -H "X-Api-Key: abc" --json
    """
    from ratekeeper.errors import InvalidInput, shown
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy

    with report_errors(as_json):
        method, _, path = request.strip().partition(" ")
        if not path.strip().startswith("/"):
            raise InvalidInput(f"request: expected a method and a path such as 'GET /x', got {shown(request)}.")
        headers = [split_pair("--header", text, ":") for text in header or ()]
        facts = dict(split_pair("--fact", text, "=") for text in fact or ())
        parsed = Request(method, path.strip(), ip, headers, host=host, facts=facts or None)
        explanation = Policy.load(rules, store="memory://").explain(parsed)
    if as_json:
        steps = [{"rule": step.rule, "applies": step.applies, "text": step.text} for step in explanation.steps]
        print_json({"lines": list(explanation.lines), "rules": steps})
        return
    for line in explanation.lines:
        out.print(line, markup=False, soft_wrap=True)
    width = max([len(step.rule) for step in explanation.steps], default=0)
    for step in explanation.steps:
        style = "bold" if step.applies else "dim"
        out.print(f"  {'+' if step.applies else '-'} {step.rule:{width}}  {step.text}", style=style, markup=False,
                  soft_wrap=True)  # fmt: skip


def split_pair(option: str, text: str, separator: str) -> tuple[str, str]:
    from ratekeeper.errors import InvalidInput, shown

    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise InvalidInput(f"{option}: expected 'name{separator} value', got {shown(text)}.")
    return name.strip(), value.strip()

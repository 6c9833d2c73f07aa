"""``ratekeeper explain``: which rules meet this request, and why?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratekeeper.commands.output import AS_JSON, mistakes, out, show_json


def explain(
    rules: Annotated[Path, typer.Argument(help="A rules file.")],
    request: Annotated[str, typer.Argument(help="A method and a path: 'GET /x'.")],
    ip: Annotated[str, typer.Option(help="The address of the socket's peer.")] = "203.0.113.9",
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="'Name: value', as often as needed.")
    ] = None,
    fact: Annotated[list[str] | None, typer.Option(help="'user=42': what the application has verified.")] = None,
    host: Annotated[str | None, typer.Option(help="The host that is asked for.")] = None,
    as_json: bool = AS_JSON,
) -> None:
    """Say step by step which rules a request meets, by which keys, under which limits.

    \b
    ratekeeper explain rules.toml "GET /api/search" --ip 198.51.100.7
    ratekeeper explain rules.toml "POST /login" -H "X-Api-Key: abc" --json
    """
    from ratekeeper.errors import InvalidInput, shown
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy

    with mistakes(as_json):
        method, _, path = request.strip().partition(" ")
        if not path.strip().startswith("/"):
            raise InvalidInput(f"request: expected a method and a path such as 'GET /x', got {shown(request)}.")
        headers = [pair("--header", text, ":") for text in header or ()]
        facts = dict(pair("--fact", text, "=") for text in fact or ())
        described = Request(method, path.strip(), ip, headers, host=host, facts=facts or None)
        found = Policy.load(rules, store="memory://").explain(described)
    if as_json:
        steps = [{"rule": step.rule, "applies": step.applies, "text": step.text} for step in found.steps]
        show_json({"lines": list(found.lines), "rules": steps})
        return
    for line in found.lines:
        out.print(line, markup=False, soft_wrap=True)
    width = max([len(step.rule) for step in found.steps], default=0)
    for step in found.steps:
        style = "bold" if step.applies else "dim"
        out.print(f"  {'+' if step.applies else '-'} {step.rule:{width}}  {step.text}", style=style, markup=False,
                  soft_wrap=True)  # fmt: skip


def pair(option: str, text: str, mark: str) -> tuple[str, str]:
    from ratekeeper.errors import InvalidInput, shown

    name, found, value = text.partition(mark)
    if not found or not name.strip():
        raise InvalidInput(f"{option}: expected 'name{mark} value', got {shown(text)}.")
    return name.strip(), value.strip()

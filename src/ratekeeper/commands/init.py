"""``ratekeeper init``: write a rules file to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ratekeeper.commands.output import AS_JSON, out, print_json, report_errors
from ratekeeper.errors import InvalidInput

STARTERS = Path(__file__).parents[1] / "rules" / "starters"
SCHEMA = Path(__file__).parents[1] / "rules.schema.json"
KINDS = {
    "api": "a public API: API keys, free and paid",
    "website": "a website: visitors, a login, a search",
    "saas": "an application for organisations: JSON Web Tokens, plans",
    "internal": "services inside one network",
    "llm": "a gateway in front of a language model",
}


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("rules.toml"),
    kind: Annotated[
        str | None, typer.Option(help=f"What it protects: {', '.join(KINDS)}. Asked for if missing.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: bool = AS_JSON,
) -> None:
    """Write a rules file to start from, and its schema for editors.

    \b
    ratekeeper init
    ratekeeper init rules.toml --kind website

    The first line of the file names the schema, so that editors complete and check it.
    """
    with report_errors(as_json):
        if file.suffix != ".toml":
            raise InvalidInput(f"init: expected a file that ends in .toml, got {file.name!r}. Rename it.")
        if file.exists() and not force:
            raise InvalidInput(f"init: expected a new file, got {file}, which exists. Choose a name, or add --force.")
        chosen = kind or ask_kind()
        if chosen not in KINDS:
            raise InvalidInput(f"init: expected one of {', '.join(KINDS)} as --kind, got {chosen!r}.")
        text = (STARTERS / f"{chosen}.toml").read_text("utf-8")
        schema = file.with_name("rules.schema.json")
        file.write_text(f"#:schema {schema.name}\n{text}", "utf-8")
        schema.write_text(SCHEMA.read_text("utf-8"), "utf-8")
    next_steps = [f"ratekeeper check {shlex.quote(str(file))}", f"ratekeeper serve {shlex.quote(str(file))}"]
    if as_json:
        print_json({"file": str(file), "schema": str(schema), "kind": chosen, "next": next_steps})
        return
    out.print(f"{file}: written, with {schema.name} for your editor. Change it to fit, then run:", markup=False)
    for command in next_steps:
        out.print(f"  {command}", markup=False)


def ask_kind() -> str:
    for name, description in KINDS.items():
        out.print(f"  {name:10} {description}", markup=False)
    answer: str = typer.prompt("What do the rules protect?", default="api")
    return answer

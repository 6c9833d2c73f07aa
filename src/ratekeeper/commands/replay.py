"""``ratekeeper replay``: what would these rules have done to yesterday's requests?"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ratekeeper.commands.output import AS_JSON, mistakes, out, show_json
from ratekeeper.commands.progress import progress_bar


class WithJsonFile(TyperCommand):
    """``--json report.json`` is ``--json-file report.json``: everywhere else ``--json`` takes no file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for place, (word, file) in enumerate(pairwise(args)):
            if word == "--json" and file.endswith(".json") and is_ours(Path(file)):
                args = [*args[:place], "--json-file", *args[place + 1 :]]
                break
        return super().parse_args(ctx, args)


def is_ours(path: Path) -> bool:
    """Whether a file may be written to: there is none yet, or a report of before.  A log has an event in each line."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"{\n"
    except FileNotFoundError:
        return True
    except OSError:
        return False


def replay(
    logs: Annotated[list[str], typer.Argument(metavar="LOG...", help="Access logs, also compressed; '-' is stdin.")],
    rules: Annotated[Path, typer.Option("--rules", "-r", help="The rules file to try.")],
    against: Annotated[Path | None, typer.Option(help="The rules in force now: show what would change.")] = None,
    suggest: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Look for limits that refuse at most this: '0.1%'.")
    ] = None,
    format: Annotated[str, typer.Option("--format", help="auto, common (also combined) or json.")] = "auto",
    field: Annotated[
        list[str] | None, typer.Option(help="'client=remote_addr': where a JSON line has it. May be repeated.")
    ] = None,
    zone: Annotated[
        str, typer.Option(help="auto, written or ignored: whether to believe the zones of stamps.")
    ] = "auto",
    top: Annotated[int, typer.Option(min=1, help="Show so many clients and paths.")] = 20,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Number the clients, and name none.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report to read and to play with.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json-file", help="Write all figures as JSON; --json FILE.json is the same.")
    ] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write a row for each client.")] = None,
    plot: Annotated[
        list[Path] | None, typer.Option(help="Write a picture: .png, .svg or .pdf. May be repeated.")
    ] = None,
    as_json: bool = AS_JSON,
) -> None:
    """Run a rules file over access logs: who would have been refused, when, by which rule, for how long?

    Reads nginx and Apache logs (common and combined) and JSON lines, also compressed, several merged by time.

    \b
    ratekeeper replay access.log --rules rules.toml
    ratekeeper replay access.log.*.gz -r new.toml --against rules.toml --html report.html
    zcat access.log.1.gz | ratekeeper replay - -r rules.toml --suggest 0.1% --json
    ratekeeper replay app.json -r rules.toml --field client=ip --field header:X-Api-Key=api_key

    Exit code 0: done; 2: a mistake in what was asked.  Lines that cannot be read are counted and shown.
    """
    from ratekeeper.lab.files import check_writable, writing
    from ratekeeper.lab.plots import picture_path, save_replay
    from ratekeeper.lab.replay import replay as run
    from ratekeeper.lab.replay_text import replay_as_text
    from ratekeeper.lab.text import BLOCKS, DIGITS

    with mistakes(as_json):
        for path in plot or ():
            picture_path(path)
        for file in (html, json_file, csv_file):
            if file is not None:
                check_writable(file, logs)
        with progress_bar(not as_json) as progress:
            found = run(
                logs,
                rules,
                against=against,
                format=format,
                fields=dict(pair(text) for text in field or ()),
                zone=zone,
                suggest=share(suggest) if suggest else None,
                top=top,
                anonymous=anonymous,
                progress=progress,
            )
        for path in plot or ():
            save_replay(found, path)
        if html is not None:
            from ratekeeper.lab.report import write_replay

            write_replay(found, html)
        if csv_file is not None:
            found.write_csv(csv_file)
        if json_file is not None:
            import json

            with writing(json_file) as written:
                json.dump(found.to_json(), written, indent=2, ensure_ascii=False)
    if as_json:
        show_json(found.to_json())
    else:
        heights = BLOCKS if (out.encoding or "").lower().startswith("utf") else DIGITS
        typer.echo(replay_as_text(found, min(out.width, 140), colours=out.color_system is not None, heights=heights))


def pair(text: str) -> tuple[str, str]:
    from ratekeeper.errors import InvalidInput, shown

    name, found, place = text.rpartition("=")
    if not found or not name or not place:
        raise InvalidInput(f"--field: expected 'client=remote_addr', got {shown(text)}.")
    return name.strip(), place.strip()


def share(text: str) -> float:
    """``0.1%`` and ``0.001`` are the same."""
    from ratekeeper.errors import InvalidInput, shown

    number, is_percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        return float(number) / (100 if is_percent else 1)
    except ValueError:
        raise InvalidInput(f"--suggest: expected a share such as '0.1%' or 0.001, got {shown(text)}.") from None

"""``ratekeeper replay``: run a rules file over access logs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from ratekeeper.commands.output import AS_JSON, print_drawing, print_json, report_errors
from ratekeeper.commands.plain_types import PlainCommand
from ratekeeper.commands.progress import progress_bar


class ReplayCommand(PlainCommand):
    """Accepts ``--json report.json`` for ``--json-file report.json``; in other commands ``--json`` takes no file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for place, (word, file) in enumerate(pairwise(args)):
            if word == "--json" and file.endswith(".json") and is_report(Path(file)):
                args = [*args[:place], "--json-file", *args[place + 1 :]]
                break
        return super().parse_args(ctx, args)


def is_report(path: Path) -> bool:
    """Whether a JSON file is free or an earlier report, rather than a log, which has an event in each line."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"{\n"
    except FileNotFoundError:
        return True
    except OSError:
        return False


def replay(
    logs: Annotated[list[str], typer.Argument(metavar="LOG", help="Access logs, plain or compressed; '-' is stdin.")],
    rules: Annotated[Path, typer.Option("--rules", "-r", help="The rules file to try.")],
    against: Annotated[Path | None, typer.Option(help="The current rules file; show what would change.")] = None,
    suggest: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Suggest limits that refuse at most this share of clients, '0.1%'."),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="auto, common (includes combined), vhost or json.")] = "auto",
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FIELD", help="Name of a JSON field, 'client=remote_addr'. May be repeated."),
    ] = None,
    zone: Annotated[
        str, typer.Option(help="Time zones of timestamps: auto, written (use them) or ignored (read as UTC).")
    ] = "auto",
    sort: Annotated[
        bool, typer.Option("--sort", help="Sort all lines by time first, for logs whose lines are in no order.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Show N clients and N paths.")] = 20,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Replace the names of clients by numbers.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write an interactive report.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json-file", help="Write all figures as JSON; also --json FILE.json.")
    ] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write one row per client.")] = None,
    plot: Annotated[list[Path] | None, typer.Option(help="Write a plot: .png, .svg or .pdf. May be repeated.")] = None,
    as_json: bool = AS_JSON,
) -> None:
    """Run a rules file over access logs: who would have been refused, when, by which rule, for how long?

    Reads nginx and Apache logs (common and combined) and JSON lines, plain or compressed; merges several by time.

    \b
    ratekeeper replay access.log --rules rules.toml
    ratekeeper replay access.log.*.gz -r new.toml --against rules.toml --html report.html
    zcat access.log.1.gz | ratekeeper replay - -r rules.toml --suggest 0.1% --json
    ratekeeper replay app.json -r rules.toml --field client=ip --field header:X-Api-Key=api_key

    Exit code 0: done; 2: an error in the options or the rules.  Lines that cannot be read are counted and shown,
    and so is a damaged file: the lines before the damage count.
    """
    from ratekeeper.lab.files import check_writable, open_for_writing
    from ratekeeper.lab.plots import check_plot_path, save_replay
    from ratekeeper.lab.replay import replay as run
    from ratekeeper.lab.text import replay_as_text

    with report_errors(as_json):
        for path in plot or ():
            check_plot_path(path)
        for file in (html, json_file, csv_file):
            if file is not None:
                check_writable(file, logs)
        with progress_bar("lines", not as_json) as progress:
            result = run(
                logs,
                rules,
                against=against,
                format=format,
                fields=dict(split_field(text) for text in field or ()),
                zone=zone,
                suggest=parse_share(suggest) if suggest else None,
                sort=sort,
                top=top,
                anonymous=anonymous,
                progress=progress,
            )
        for path in plot or ():
            save_replay(result, path)
        if html is not None:
            from ratekeeper.lab.report import write_replay

            write_replay(result, html)
        if csv_file is not None:
            result.write_csv(csv_file)
        if json_file is not None:
            import json

            with open_for_writing(json_file) as opened:
                json.dump(result.to_json(), opened, indent=2, ensure_ascii=False)
    if as_json:
        print_json(result.to_json())
    else:
        print_drawing(lambda width, style: replay_as_text(result, width, style))


def split_field(text: str) -> tuple[str, str]:
    from ratekeeper.errors import InvalidInput, shown

    name, equals, path = text.rpartition("=")
    if not equals or not name or not path:
        raise InvalidInput(f"--field: expected 'client=remote_addr', got {shown(text)}.")
    return name.strip(), path.strip()


def parse_share(text: str) -> float:
    """``0.1%`` and ``0.001`` are the same."""
    from ratekeeper.errors import InvalidInput, shown

    number, is_percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        return float(number) / (100 if is_percent else 1)
    except ValueError:
        raise InvalidInput(f"--suggest: expected a share such as '0.1%' or 0.001, got {shown(text)}.") from None

"""``ratekeeper simulate``: what do these limits do to this traffic?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratekeeper.commands.output import AS_JSON, mistakes, out, show_json
from ratekeeper.commands.progress import progress_bar


def simulate(
    limits: Annotated[
        list[str], typer.Argument(metavar="LIMIT...", help="'100/minute'; with commas, several that hold together.")
    ],
    traffic: Annotated[
        str,
        typer.Option(
            "--traffic",
            "-t",
            help="steady, burst, on_off, poisson, diurnal, boundary, retry_storm, herd or abuser.",
        ),
    ] = "poisson",
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", help="Put each limit through this one; 'all' for all six. May be repeated."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="An access log, or a CSV of seconds, client and cost, in place of a shape.")
    ] = None,
    load: Annotated[float | None, typer.Option(help="Calls of a client, in multiples of the limit's rate.")] = None,
    clients: Annotated[int | None, typer.Option(help="How many call.")] = None,
    seconds: Annotated[float | None, typer.Option(help="For how long; by default twelve periods.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same calls.")] = 1,
    shared: Annotated[bool, typer.Option("--shared", help="Count all clients as one.")] = False,
    plot: Annotated[
        list[Path] | None, typer.Option(help="Write a picture: .png, .svg or .pdf. May be repeated.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write an interactive report.")] = None,
    as_json: bool = AS_JSON,
) -> None:
    """Send traffic through limits side by side, by the rules of production, in no time.

    \b
    ratekeeper simulate 100/minute --algorithm all --traffic boundary
    ratekeeper simulate "10/second burst 20" "10/second burst 5" -t on_off --load 1.5
    ratekeeper simulate "10/second, 300/minute" -t abuser --shared --html report.html
    ratekeeper simulate 60/minute -a all --trace access.log --plot lanes.png

    Exit code 0: done; 2: a mistake in what was asked.
    """  # fmt: skip
    from ratekeeper.algorithms import ALGORITHMS
    from ratekeeper.lab.files import check_writable
    from ratekeeper.lab.plots import picture_path, save_lanes
    from ratekeeper.lab.simulate import simulate as run
    from ratekeeper.lab.text import BLOCKS, DIGITS, lanes_as_text
    from ratekeeper.lab.trace import load_trace

    with mistakes(as_json):
        for path in plot or ():
            picture_path(path)
        if html is not None:
            check_writable(html)
        lanes = [[part.strip() for part in limit.split(",")] for limit in limits]
        names = None
        if algorithm:
            names = list(dict.fromkeys(one for name in algorithm for one in (ALGORITHMS if name == "all" else [name])))
        with progress_bar(not as_json) as progress:
            found = run(
                lanes,
                traffic if trace is None else load_trace(trace),
                algorithms=names,
                load=load,
                clients=clients,
                seconds=seconds,
                seed=seed,
                shared=shared,
                progress=progress,
            )
        for path in plot or ():
            save_lanes(found, path)
        if html is not None:
            from ratekeeper.lab.report import write_simulation

            write_simulation(found, html)
    if as_json:
        show_json(found.to_json())
    else:
        heights = BLOCKS if (out.encoding or "").lower().startswith("utf") else DIGITS
        text = lanes_as_text(found, min(out.width, 140), colours=out.color_system is not None, heights=heights)
        typer.echo(text)

"""``ratekeeper simulate``: send simulated or recorded traffic through limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratekeeper.commands.output import AS_JSON, print_drawing, print_json, report_errors
from ratekeeper.commands.progress import progress_bar


def simulate(
    limits: Annotated[
        list[str], typer.Argument(metavar="LIMIT", help="Such as '100/minute'; commas join limits of one lane.")
    ],
    traffic: Annotated[
        str,
        typer.Option(
            "--traffic",
            "-t",
            metavar="SHAPE",
            help="steady, burst, on_off, poisson, diurnal, boundary, retry_storm, herd or abuser.",
        ),
    ] = "poisson",
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm", "-a", metavar="NAME", help="Run each limit with this algorithm, or 'all'. May be repeated."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Recorded calls: an access log, or a CSV of seconds, client and cost.")
    ] = None,
    load: Annotated[float | None, typer.Option(help="Rate of each client, as a multiple of the limit's rate.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Duration; twelve periods by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the traffic; the same seed gives the same calls.")] = 1,
    shared: Annotated[bool, typer.Option("--shared", help="Count all clients with one counter.")] = False,
    plot: Annotated[list[Path] | None, typer.Option(help="Write a plot: .png, .svg or .pdf. May be repeated.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an interactive report.")] = None,
    as_json: bool = AS_JSON,
) -> None:
    """Send traffic through limits side by side, using the production code on a simulated clock.

    \b
    ratekeeper simulate 100/minute --algorithm all --traffic boundary
    ratekeeper simulate "10/second burst 20" "10/second burst 5" -t on_off --load 1.5
    ratekeeper simulate "10/second, 300/minute" -t abuser --shared --html report.html
    ratekeeper simulate 60/minute -a all --trace access.log --plot lanes.png

    Exit code 0: done; 2: an error in the options.
    """  # fmt: skip
    from ratekeeper.algorithms import ALGORITHMS
    from ratekeeper.lab.files import check_writable
    from ratekeeper.lab.plots import check_plot_path, save_lanes
    from ratekeeper.lab.simulate import simulate as run
    from ratekeeper.lab.text import simulation_as_text
    from ratekeeper.lab.trace import load_trace

    with report_errors(as_json):
        for path in plot or ():
            check_plot_path(path)
        if html is not None:
            check_writable(html)
        lanes = [[part.strip() for part in limit.split(",")] for limit in limits]
        names = None
        if algorithm:
            lists = [list(ALGORITHMS) if name == "all" else [name] for name in algorithm]
            names = list(dict.fromkeys(name for names in lists for name in names))
        with progress_bar("calls", not as_json) as progress:
            result = run(
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
            save_lanes(result, path)
        if html is not None:
            from ratekeeper.lab.report import write_simulation

            write_simulation(result, html)
    if as_json:
        print_json(result.to_json())
    else:
        print_drawing(lambda width, style: simulation_as_text(result, width, style))
